"""Gradients of single examples, clipped and summed, and the noise of a step."""
