"""Privacy accounting: epsilon, the ledger and its file. No torch."""
