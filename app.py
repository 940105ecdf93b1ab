"""Draw from released models in a browser, and see what they promise first.

    python app.py runs/demo/release
    python app.py runs/demo/release someone/scans --server_port 7861

Needs `pip install -e ".[app]"` in a copy of the repository. Does what `diffusers-dp app` does, also in a Space: see
examples/space/.
"""

import sys

from diffusers_dp.cli import main


if __name__ == "__main__":
    main(["app", *sys.argv[1:]])
