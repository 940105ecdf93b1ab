"""What the questions cost together: epsilon, the ledger and its file. No torch."""
