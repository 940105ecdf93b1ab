"""The door, and its answers on disk."""
