"""Several stores as one: writes go to all of them, reads to the first that has what is wanted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from tiebreak.http_client import Halted, Pauses, TooLate
from tiebreak.http_client import within as in_time
from tiebreak.store.dagpb import Cid
from tiebreak.store.kubo import KuboStore
from tiebreak.store.pinning import PinningService
from tiebreak.store.store import Addition, IsRight, Store, anything, blocks
from tiebreak.store.store_errors import ContentMissing, CorruptBlock, StoreError, StoreUnavailable
from tiebreak.store.transfers import OnTransfer, untold

_PATIENCE = 20.0
"""Most seconds that a store gets for one block while there is another one to ask."""

_SLOW = 1.0
"""Seconds after which a failure makes a store the last to be asked, for a time."""

_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0

Warn = Callable[[str], None]
"""Is told, in one sentence, what could not be stored somewhere although it is stored elsewhere."""


class _Member:
    """One of the stores: when it is asked, and what it still owes."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.owed: set[str] = set()
        self._pauses, self._paused_until = Pauses(first=_FIRST_PAUSE, most=_LONGEST_PAUSE), 0.0

    def is_paused(self) -> bool:
        return time.monotonic() < self._paused_until

    def well(self) -> None:
        self._pauses.reset()
        self._paused_until = 0.0

    def failed(self, error: StoreError, seconds: float) -> None:
        # A store that says at once that it lacks a block costs nothing to ask again.
        if seconds >= _SLOW or not isinstance(error, ContentMissing):
            self._paused_until = time.monotonic() + self._pauses.next()


class ReplicatedStore(Store):
    """A `ContentStore` of stores, in the order in which they are asked, and of pinning services.

    What is added is added to every store that can be written to; one that succeeds is enough, the others are told by
    `warn` and tried again with the next addition, pin or `mend`. A block is read from the first store that gives it in
    time and whole: one that fails is asked last for a while, and no store takes more than its share of the time.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        services: Sequence[PinningService] = (),
        *,
        warn: Warn,
        stop: threading.Event | None = None,
        on_transfer: OnTransfer = untold,
    ) -> None:
        super().__init__(", ".join(store.name for store in stores), stop, on_transfer)
        if services and not any(isinstance(store, KuboStore) for store in stores):
            raise StoreUnavailable(
                f"{services[0].name} fetches over IPFS, where nobody serves {self.name}: give Kubo's RPC with --store "
                "as well."
            )
        self._members = [_Member(store) for store in stores]
        self._services = {service: set[str]() for service in services}
        self._warn = warn
        self.width = max(store.width for store in stores)
        self.writable = any(store.writable for store in stores)

    def block(self, cid: Cid, seconds: float | None = None) -> bytes:
        return self._first(lambda store, share: store.block(cid, share), f"block {cid}", seconds)

    def part(
        self, cid: str, first: int, size: int, *, is_right: IsRight = anything, seconds: float | None = None
    ) -> bytes:
        began = time.monotonic()
        try:
            return self._first(
                lambda store, share: store.part(cid, first, size, is_right=is_right, seconds=share),
                f"{size} bytes from byte {first} of {cid} on",
                seconds,
            )
        except StoreError:
            left = None if seconds is None else seconds - (time.monotonic() - began)
            if (self.stop is not None and self.stop.is_set()) or (left is not None and left <= 0):
                raise
            # One store may lack a block of the part, or a node above it, and another store another one.
            with suppress(StoreError):
                return super().part(cid, first, size, is_right=is_right, seconds=left)
            raise

    def _first(self, fetch: Callable[[Store, float | None], bytes], what: str, seconds: float | None) -> bytes:
        """Bytes from the first store that gives them. `fetch`: asks a store that has so many seconds."""
        ends = None if seconds is None else time.monotonic() + seconds
        order = sorted(self._members, key=_Member.is_paused)
        failures: list[StoreError] = []
        for left, member in zip(range(len(order), 0, -1), order, strict=True):
            began = time.monotonic()
            rest = None if ends is None else max(0.0, ends - began)
            share = rest if left == 1 else min(_PATIENCE, _PATIENCE if rest is None else rest / left)
            try:
                found = self._ask(member.store, fetch, what, share)
            except StoreError as error:
                if self.stop is not None and self.stop.is_set():
                    raise
                member.failed(error, time.monotonic() - began)
                failures.append(error)
                continue
            member.well()
            return found
        raise _together(f"no store has given {what}", failures)

    def has(self, cid: str) -> bool:
        failures: list[StoreError] = []
        for member in self._members:
            try:
                if member.store.has(cid):
                    return True
            except StoreError as error:
                failures.append(error)
        if len(failures) == len(self._members):
            raise _together(f"no store can say whether it has {cid}", failures)
        return False

    @contextmanager
    def adding(self) -> Iterator[Addition]:
        with ExitStack() as contexts:
            everywhere = _Everywhere()
            for member in self._writable():
                try:
                    everywhere.open[member] = contexts.enter_context(member.store.adding())
                except StoreError as error:
                    everywhere.failures[member] = error
            everywhere.check()
            everywhere.finished = lambda root: self._added(str(root), everywhere.failures)
            yield everywhere

    def pin(self, cid: str) -> None:
        Cid.parse(cid)
        failures: dict[_Member, StoreError] = {}
        for member in self._writable():
            try:
                self._pin_in(member, cid)
            except StoreError as error:
                failures[member] = error
        if len(failures) == len(self._writable()):
            raise _together(f"no store has pinned {cid}", list(failures.values()))
        self._added(cid, failures)

    def unpin(self, cid: str) -> None:
        failures: list[StoreError] = []
        for member in self._writable():
            member.owed.discard(cid)
            try:
                member.store.unpin(cid)
            except StoreError as error:
                failures.append(error)
        for service, owed in self._services.items():
            owed.discard(cid)
            try:
                service.unpin(cid)
            except StoreError as error:
                failures.append(error)
        if failures:
            raise _together(f"{cid} is still pinned", failures)

    def mend(self, held: frozenset[str] = frozenset()) -> None:
        """Tries again what is missing in a store or at a service, and warns of what still is."""
        for owed in self._services.values():
            owed |= held
        for member in self._members:
            if member.store.writable:
                member.owed |= {cid for cid in held if not _has(member.store, cid)}
            for cid in sorted(member.owed):
                try:
                    self._pin_in(member, cid)
                    member.owed.discard(cid)
                except StoreError as error:
                    self._warn(f"{cid} is not in {member.store.name} yet: {_clause(error)}")
                    if isinstance(error, StoreUnavailable):
                        break  # it would be waited for as often as it owes something
        for service, owed in self._services.items():
            for cid in sorted(owed):
                if not self._pin_at(service, cid):
                    break

    def tidy(self) -> None:
        for member in self._members:
            member.store.tidy()

    def _writable(self) -> list[_Member]:
        found = [member for member in self._members if member.store.writable]
        if not found:
            raise StoreUnavailable(
                f"{self.name} can only be read from: give a folder or Kubo's RPC with --store as well."
            )
        return found

    def _ask(
        self, store: Store, fetch: Callable[[Store, float | None], bytes], what: str, share: float | None
    ) -> bytes:
        if share is None:
            return fetch(store, None)
        try:
            return in_time(share, self.stop, lambda: fetch(store, share))
        except TooLate as error:
            raise StoreUnavailable(f"{store.name} did not give {what} in {share:.1f} seconds: try later.") from error
        except Halted as error:
            raise StoreUnavailable(
                f"stopped while {store.name} was asked for {what}: run the same command again to carry on."
            ) from error

    def _pin_in(self, member: _Member, cid: str) -> None:
        """Pins content in one store, and copies it there from the others if need be."""
        elsewhere = [other.store for other in self._members if other is not member]
        if member.store.has(cid) or not any(_has(store, cid) for store in elsewhere):
            try:
                member.store.pin(cid)
                return
            except (ContentMissing, CorruptBlock):
                if not elsewhere:
                    raise
        root = Cid.parse(cid)
        with member.store.adding() as addition:
            for at, block in blocks(self.block, root):
                addition.put(at, block)
            addition.finish(root)

    def _added(self, cid: str, failures: dict[_Member, StoreError]) -> None:
        for member, error in failures.items():
            member.owed.add(cid)
            self._warn(f"{cid} is not in {member.store.name}, only elsewhere: {_clause(error)}")
        for service in self._services:
            self._pin_at(service, cid)

    def _pin_at(self, service: PinningService, cid: str) -> bool:
        """Has a service pin content. False, and a warning, if it has not."""
        owed = self._services[service]
        try:
            service.pin(cid, origins=self._origins(), reach=self._reach)
            owed.discard(cid)
        except StoreError as error:
            owed.add(cid)
            self._warn(f"{cid} is not pinned at {service.name} yet: {_clause(error)}")
            return False
        return True

    def _reach(self, peers: Sequence[str]) -> None:
        """Has our own daemons call a service's peers."""
        for member in self._members:
            if isinstance(member.store, KuboStore):
                member.store.connect(peers)

    def _origins(self) -> list[str]:
        """Addresses of our own daemons, where a pinning service finds the content."""
        found: list[str] = []
        for member in self._members:
            if isinstance(member.store, KuboStore):
                try:
                    found += member.store.addresses()
                except StoreError:
                    continue  # the service asks the network, then
        return found


class _Everywhere:
    """An `Addition` to several stores. One that fails is left out from then on."""

    def __init__(self) -> None:
        self.open: dict[_Member, Addition] = {}
        self.failures: dict[_Member, StoreError] = {}
        self.finished: Callable[[Cid], None] = lambda root: None

    def put(self, cid: Cid, block: bytes) -> None:
        self._each(lambda addition: addition.put(cid, block))

    def finish(self, root: Cid) -> None:
        self._each(lambda addition: addition.finish(root))
        self.finished(root)

    def check(self) -> None:
        """Raises StoreUnavailable if no store is left."""
        if not self.open:
            raise _together("no store has taken the content", list(self.failures.values()))

    def _each(self, call: Callable[[Addition], None]) -> None:
        for member, addition in list(self.open.items()):
            try:
                call(addition)
            except StoreError as error:
                del self.open[member]
                self.failures[member] = error
        self.check()


def _has(store: Store, cid: str) -> bool:
    try:
        return store.has(cid)
    except StoreError:
        return False


def _together(what: str, failures: Sequence[StoreError]) -> StoreError:
    """One error for all that have failed."""
    text = f"{what}: {'; '.join(_clause(error) for error in failures)}."
    for kind in (ContentMissing, CorruptBlock):
        if failures and all(isinstance(error, kind) for error in failures):
            return kind(text)
    return StoreUnavailable(text)


def _clause(error: StoreError) -> str:
    return str(error).rstrip(".")
