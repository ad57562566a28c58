"""Operators that are taken apart into others while a step is traced, one file a subject."""

from roundlog.capture.decompositions.decomposition_table import decompositions, own_decompositions

__all__ = ["decompositions", "own_decompositions"]
