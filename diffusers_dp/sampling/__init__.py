"""Sampling from a release."""
