"""Queries of methods to the sensitive images, one file each; importing one loads no torch."""
