"""Numbers of a task before its first step (weights, tables, masks), the same on every machine: random numbers from
Philox, and arithmetic by this package's own operators."""

from roundlog.capture.portable.mode import OutVariants, PortableNumbers, paused, portable, torchs_own

__all__ = ["OutVariants", "PortableNumbers", "paused", "portable", "torchs_own"]
