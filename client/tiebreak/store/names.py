"""Names that a published directory may contain."""

from __future__ import annotations

from tiebreak.store.errors import UnsafeName

MAX_NAME = 255
"""Longest name in UTF-8 bytes: the limit of common file systems."""


def check_name(name: str) -> None:
    """Raises UnsafeName unless `name` is one plain path component on every common file system."""
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise UnsafeName(f"the name {name!r} is not UTF-8: rename the file.") from error
    if (
        not name
        or name in (".", "..")
        or size > MAX_NAME
        or any(character in '/\\:"<>|?*' or ord(character) < 32 or ord(character) == 127 for character in name)
    ):
        shown = name if len(name) <= 80 else name[:77] + "..."
        raise UnsafeName(
            f"the directory entry {shown!r} is not a plain file name: rename it, or ask its publisher to if "
            "it was fetched."
        )
