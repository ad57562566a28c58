"""Undoes what py_ecc does on import: it allows 100,000 nested calls, more than the C stack holds.

With that limit, deeply nested JSON from a stranger (a node, a keystore, a fetched job) ends the process with a
segmentation fault instead of a RecursionError. eth-account and py-evm both load py_ecc, so every module that imports
one of them calls `restore_recursion_limit` right after its imports; py_ecc's import cannot happen a second time.
"""

from __future__ import annotations

import sys

_LIMIT = 1024 * 12
"""Nested calls that py-evm asks for. json, copy and repr stay within a C stack of 8 MiB with it."""


def restore_recursion_limit() -> None:
    import py_ecc  # noqa: F401  (so that nobody imports it later and raises the limit again)

    sys.setrecursionlimit(min(_LIMIT, sys.getrecursionlimit()))
