"""Releases: the public folder, its receipt and card, and the upload to the Hub."""
