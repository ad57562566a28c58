"""Errors of the room."""

from __future__ import annotations


class DataError(ValueError):
    """Something that cannot be a field; the message says why, and what to give."""
