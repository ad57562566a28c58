"""Tensors of rows that a mask chooses (`x[mask]`), lowered at their full length beside the mask.

PyTorch traces such a tensor with a size that it does not know, and carries this size through everything that follows,
the gradients too. A program has fixed shapes: it holds all rows in their places, and knows which of them count. What
works row by row computes with all of them; what mixes rows replaces those that do not count first, by `where`, so that
an infinity or NaN in them reaches nothing."""

from roundlog.capture.masked_rows.row_lowering import MaskedRows
from roundlog.capture.masked_rows.row_masks import Axes

__all__ = ["Axes", "MaskedRows"]
