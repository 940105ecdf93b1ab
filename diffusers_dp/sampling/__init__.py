"""Drawing from a release."""
