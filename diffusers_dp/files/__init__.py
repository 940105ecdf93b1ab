"""Files that are whole or absent, hashed, and written one way. No torch."""
