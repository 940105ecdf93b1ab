"""Draw from released models in a browser, and see what they promise first.

    python app.py runs/demo/release
    python app.py runs/demo/release someone/scans --server_port 7861

Needs `pip install diffusers_dp[app]`. Also the `app.py` of a Space: see examples/space/.
"""

from diffusers_dp.app import main


if __name__ == "__main__":
    main()
