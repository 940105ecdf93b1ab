"""The processes of a run, their signals, pools and memory."""
