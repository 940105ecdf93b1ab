"""The page of a Space; `DIFFUSERS_DP_RELEASES` says which releases it draws from."""

import sys

from diffusers_dp.cli import main


if __name__ == "__main__":
    main(["app", *sys.argv[1:]])
