"""Updates of PyTorch's optimizers, one file a family, and their schedules."""

from roundlog.capture.optimizers.optimizer_table import clip_factor, updates
from roundlog.capture.optimizers.update import Column, Update, is_own

__all__ = ["Column", "Update", "clip_factor", "is_own", "updates"]
