"""Processes of a run: launch, signals, pools and memory."""
