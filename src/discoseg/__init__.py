"""Discretely constrained segmentation."""

__version__ = "0.1.0"
