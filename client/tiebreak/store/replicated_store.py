"""Several stores as one: writes go to all of them, reads to the first that has what is wanted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from tiebreak.store.dag_builder import Sink
from tiebreak.store.dagpb import Cid
from tiebreak.store.http import Retries
from tiebreak.store.kubo import KuboStore
from tiebreak.store.pinning import PinningService
from tiebreak.store.store import Build, Store, blocks
from tiebreak.store.store_errors import (
    ContentMissing,
    ContentTooLarge,
    CorruptBlock,
    StoreError,
    StoreUnavailable,
    UnsafeName,
    UnsupportedFile,
)

_PATIENCE = 20.0
"""Most seconds that a store gets for one block while there is another one to ask."""

_SLOW = 1.0
"""Seconds after which a failure makes a store the last to be asked, for a time."""

_PAUSE = 60.0
"""Seconds for which a store that has failed is the last to be asked."""

_UNPUBLISHABLE = (UnsupportedFile, UnsafeName, ContentTooLarge)
"""Errors of the files that are added, not of a store."""

Warn = Callable[[str], None]
"""Receives, in one sentence, what could not be stored somewhere although it is stored elsewhere."""


class ReplicatedStore(Store):
    """A `Store` of stores, in the order in which they are asked, and of the pinning service of the first Kubo daemon
    among them.

    What is added is added to every store that can be written to; one that succeeds is enough, the others are told by
    `warn` and tried again with the next addition, pin or `mend`. A block is read from the first store that gives it in
    time and whole: one that fails is asked last for a while, and no store takes more than its share of the time.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        pin_service: str | None = None,
        *,
        warn: Warn,
        stop: threading.Event | None = None,
    ) -> None:
        super().__init__(", ".join(store.name for store in stores), stop)
        self._stores = list(stores)
        self._paused_until = dict.fromkeys(stores, 0.0)
        self._writable = [store for store in stores if store.writable]
        daemon = next((store for store in stores if isinstance(store, KuboStore)), None)
        self._service = PinningService(pin_service, daemon) if pin_service is not None and daemon is not None else None
        places: list[Store | PinningService] = [*self._writable, *([self._service] if self._service else [])]
        self._lacking = {place: set[str]() for place in places}
        """What each place that keeps content does not have yet."""
        self._warn = warn
        self.width = max(store.width for store in stores)
        self.writable = bool(self._writable)

    def block(self, cid: Cid, seconds: float | None = None) -> bytes:
        return self._first(lambda store, share: store.block(cid, share), f"block {cid}", seconds)

    def _leaf(self, cid: Cid, first: int, size: int, seconds: float | None) -> bytes:
        return self._first(lambda store, share: store._leaf(cid, first, size, share), f"block {cid}", seconds)

    def _first(self, fetch: Callable[[Store, float | None], bytes], what: str, seconds: float | None) -> bytes:
        """Return bytes from the first store that gives them. `fetch`: asks a store that has so many seconds."""
        ends = None if seconds is None else time.monotonic() + seconds
        order = sorted(self._stores, key=lambda store: time.monotonic() < self._paused_until[store])
        failures: list[StoreError] = []
        for left, store in zip(range(len(order), 0, -1), order, strict=True):
            began = time.monotonic()
            rest = None if ends is None else max(0.0, ends - began)
            share = rest if left == 1 else min(_PATIENCE, _PATIENCE if rest is None else rest / left)
            try:
                found = fetch(store, None) if share is None else self._timed(store, fetch, f"give {what}", share)
            except StoreError as error:
                if self.stop is not None and self.stop.is_set():
                    raise
                # A store that says at once that it lacks a block costs nothing to ask again.
                if time.monotonic() - began >= _SLOW or not isinstance(error, ContentMissing):
                    self._paused_until[store] = time.monotonic() + _PAUSE
                failures.append(error)
            else:
                self._paused_until[store] = 0.0
                return found
        raise _together(f"no store has given {what}", failures)

    def _timed(self, store: Store, fetch: Callable[[Store, float], bytes], what: str, share: float) -> bytes:
        # Stores keep to their share, but for a folder on a disk that hangs.
        once = Retries(name=store.name, remedy="try again later", timeout=share, attempts=1, stop=self.stop)
        return once.run(what, lambda left: fetch(store, left))

    def has(self, cid: str) -> bool:
        failures: list[StoreError] = []
        for store in self._stores:
            try:
                if store.has(cid):
                    return True
            except StoreError as error:
                failures.append(error)
        if len(failures) == len(self._stores):
            raise _together(f"no store can say whether it has {cid}", failures)
        return False

    def add_blocks(self, build: Build) -> Cid:
        roots: list[Cid] = []

        def add(store: Store) -> None:
            root = store.add_blocks(build)
            if roots and root != roots[0]:
                raise StoreError("what is published has changed meanwhile.")
            roots.append(root)

        failures = self._everywhere(add, "no store has taken the content")
        self._note(str(roots[0]), failures)
        return roots[0]

    def pin(self, cid: str) -> None:
        Cid.parse(cid)
        self._note(cid, self._everywhere(lambda store: self._pin_in(store, cid), f"no store has pinned {cid}"))

    def unpin(self, cid: str) -> None:
        failures: list[StoreError] = []
        for place, lacking in self._lacking.items():
            lacking.discard(cid)
            try:
                place.unpin(cid)
            except StoreError as error:
                failures.append(error)
        if failures:
            raise _together(f"{cid} is still pinned", failures)

    def mend(self, held: frozenset[str] = frozenset()) -> None:
        """Try again what is missing in a store or at a service, and warn of what still is."""
        for place, lacking in self._lacking.items():
            lacking |= {cid for cid in held if isinstance(place, PinningService) or not _has(place, cid)}
            for cid in sorted(lacking):
                error = self._pin_at(place, cid)
                if isinstance(error, StoreUnavailable) or (error and isinstance(place, PinningService)):
                    break  # it would be waited for as often as it lacks something

    def tidy(self) -> None:
        for store in self._stores:
            store.tidy()

    def _everywhere(self, action: Callable[[Store], None], what: str) -> dict[Store, StoreError]:
        """Do something in every store that can be written to, and return where it has failed. `what`: a clause for the
        error if it has failed everywhere."""
        if not self._writable:
            raise self._read_only()
        failures: dict[Store, StoreError] = {}
        for store in self._writable:
            try:
                action(store)
            except _UNPUBLISHABLE:
                raise
            except StoreError as error:
                failures[store] = error
        if len(failures) == len(self._writable):
            raise _together(what, list(failures.values()))
        return failures

    def _note(self, cid: str, failures: dict[Store, StoreError]) -> None:
        """Note which stores lack content that others have, and have the service pin it."""
        for store, error in failures.items():
            self._lacking[store].add(cid)
            self._warn(f"{cid} is not in {store.name}, only elsewhere: {_clause(error)}")
        if self._service is not None:
            self._pin_at(self._service, cid)

    def _pin_at(self, place: Store | PinningService, cid: str) -> StoreError | None:
        """Have a place pin content; return why it has not, after a warning."""
        try:
            if isinstance(place, PinningService):
                place.pin(cid)
            else:
                self._pin_in(place, cid)
        except StoreError as error:
            self._lacking[place].add(cid)
            self._warn(f"{cid} is not pinned in {place.name} yet: {_clause(error)}")
            return error
        self._lacking[place].discard(cid)
        return None

    def _pin_in(self, store: Store, cid: str) -> None:
        """Pin content in one store, and copy it there from the others if need be."""
        others = [other for other in self._stores if other is not store]
        if store.has(cid) or not any(_has(other, cid) for other in others):
            try:
                store.pin(cid)
                return
            except (ContentMissing, CorruptBlock):
                if not others:
                    raise

        def copy(sink: Sink) -> Cid:
            for at, block in blocks(self.block, Cid.parse(cid)):
                sink(at, block)
            return Cid.parse(cid)

        store.add_blocks(copy)


def _has(store: Store, cid: str) -> bool:
    try:
        return store.has(cid)
    except StoreError:
        return False


def _together(what: str, failures: Sequence[StoreError]) -> StoreError:
    """Return one error for all that have failed."""
    text = f"{what}: {'; '.join(_clause(error) for error in failures)}."
    for kind in (ContentMissing, CorruptBlock):
        if failures and all(isinstance(error, kind) for error in failures):
            return kind(text)
    return StoreUnavailable(text)


def _clause(error: StoreError) -> str:
    return str(error).rstrip(".")
