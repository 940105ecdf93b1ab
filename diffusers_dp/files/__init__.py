"""Atomic, hashed files with one serialisation format. No torch."""
