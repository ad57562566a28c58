"""Updates of PyTorch's optimizers, one file a family, and their schedules."""

from roundlog.capture.optimizers.table import clip_factor, updates
from roundlog.capture.optimizers.update import Update

__all__ = ["Update", "clip_factor", "updates"]
