"""What a run is made of: its plan, its owner, the loop of DP-SGD, warm-ups and checkpoints."""
