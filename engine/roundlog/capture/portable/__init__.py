"""Numbers of a task before its first step: draws, and elementwise functions that fill tables, the same everywhere."""

from roundlog.capture.portable.mode import paused, portable, torchs_own

__all__ = ["paused", "portable", "torchs_own"]
