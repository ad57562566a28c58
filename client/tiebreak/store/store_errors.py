"""Errors of the content store, one type for each way to fail.

A message is one sentence that names the thing and says what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterator


class StoreError(Exception):
    """Base of every error that the content store raises on purpose."""


class InvalidCid(StoreError):
    """A string is not a content identifier that this project uses."""


class ContentMissing(StoreError):
    """No block with the wanted identifier can be had from this store."""


class CorruptBlock(StoreError):
    """The bytes of a block do not have the hash that its identifier promises."""


class MalformedContent(StoreError):
    """The blocks are authentic but do not form a well-made UnixFS file or directory."""


class UnsafeName(StoreError):
    """A directory entry has a name that could escape the directory or that cannot be stored faithfully."""


class ContentTooLarge(StoreError):
    """The content is larger (bytes, entries, depth) than the caller is willing to take."""


class UnsupportedFile(StoreError):
    """A local path holds something that cannot be published: a symbolic link, a device, a socket."""


class DestinationExists(StoreError):
    """The place where content should be written is already taken."""


class FetchTooSlow(StoreError):
    """The content did not come within the time that the caller gave it."""


class NoSpace(StoreError):
    """The disk has no room for the content, which is told before it is fetched."""


class StoreUnavailable(StoreError):
    """The content store cannot be reached, or answered with something that is not its protocol."""


def unusable(what: str, error: OSError) -> StoreUnavailable:
    """Return the error for a disk that is full or read-only, or for a missing right: all of them may pass."""
    return StoreUnavailable(f"{what} ({error.strerror}): make room there, or check its rights, and try again.")


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, what it was raised from, and so on."""
    while error is not None:
        yield error
        error = error.__cause__
