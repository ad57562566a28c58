"""The blocks of a graph: all that a root needs, whatever they mean."""

from __future__ import annotations

from collections.abc import Iterator

from tiebreak.store.cid import RAW, Cid
from tiebreak.store.dagpb import decode
from tiebreak.store.reader import Fetch


def blocks(fetch: Fetch, cid: Cid, *, leaves: bool = True) -> Iterator[tuple[Cid, bytes]]:
    """Yields every block below and including `cid` once, with its bytes; content is not looked at, only structure.
    `leaves`: whether raw blocks, which have no links, are among them."""
    # By codec, too: a stranger may link to a node as if it were raw bytes, which would hide what is below it.
    seen = {(cid.codec, cid.digest)}
    pending = [cid]
    while pending:
        at = pending.pop()
        if at.codec == RAW and not leaves:
            continue
        block = fetch(at)
        yield at, block
        if at.codec == RAW:
            continue
        for link in decode(block, str(at)).links:
            if (key := (link.cid.codec, link.cid.digest)) not in seen:
                seen.add(key)
                pending.append(link.cid)


def reachable(fetch: Fetch, cid: Cid) -> Iterator[Cid]:
    """Yields every block below and including `cid` once, after it was fetched."""
    return (at for at, _ in blocks(fetch, cid))


def named(fetch: Fetch, cid: Cid) -> Iterator[Cid]:
    """Yields the identifier of every block below and including `cid`, some more than once. Raw blocks are not
    fetched."""
    yield cid
    for _, block in blocks(fetch, cid, leaves=False):
        for link in decode(block, str(cid)).links:
            yield link.cid
