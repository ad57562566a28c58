"""Updates of PyTorch's optimizers, and their schedules."""

from roundlog.capture.optimizers.update import Column, Update, is_own
from roundlog.capture.optimizers.update_rules import clip_factor, refuse_hooks, updates

__all__ = ["Column", "Update", "clip_factor", "is_own", "refuse_hooks", "updates"]
