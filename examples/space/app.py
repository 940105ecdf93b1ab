"""The page of a Space; `DIFFUSERS_DP_RELEASES` says which releases it draws from."""

from diffusers_dp.app import main


if __name__ == "__main__":
    main()
