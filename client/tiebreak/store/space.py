"""Space on disks, which is looked at before a stranger's content is written there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tiebreak.store.errors import NoSpace

LEFT = 32 << 20
LEFT_PART = 20
"""Bytes that fetched content leaves free, or this part of a small disk: what a process has to write down meanwhile
needs less."""

_BLOCK = 512


def taken(file: Path | int) -> int:
    """Bytes of the disk that a file takes, or an open one; 0 if there is none."""
    try:
        found = os.fstat(file) if isinstance(file, int) else os.lstat(file)
    except FileNotFoundError:
        return 0
    return found.st_blocks * _BLOCK


def require_space(place: Path | int, need: int) -> None:
    """Raises NoSpace unless so many bytes more fit the disk of a path, or of an open file, and leave enough of it."""
    if need <= 0:
        return
    disk = shutil.disk_usage(place)
    have = disk.free - min(LEFT, disk.total // LEFT_PART)
    if need > have:
        raise NoSpace(
            f"the content needs {need} bytes of the disk, which has {max(0, have)} for it and keeps the rest free: "
            "make room there."
        )
