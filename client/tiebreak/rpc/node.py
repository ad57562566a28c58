"""A chain behind typed methods that check every answer; no other module above the transport sees JSON.
And the pace of its blocks, so that nobody asks for the next one before it can be there."""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from eth_typing import ChecksumAddress

from tiebreak.rpc import answers
from tiebreak.rpc.answers import (
    MAX_LOGS,
    Block,
    Log,
    Topic,
    Transaction,
    TransactionReceipt,
    fits,
    read,
    read_logs,
    to_json,
)
from tiebreak.rpc.chain_errors import ChainUnavailable, DevnetError, InvalidAnswer, RpcRefused
from tiebreak.rpc.transport import HttpTransport, NodeAgreement, Transport

if TYPE_CHECKING:
    from web3 import Web3
    from web3.providers import BaseProvider


MAX_BLOCKS = 1_000_000_000
"""Most blocks that are searched for events; a node that names more has made the number up."""
MAX_REORGANISATION = 64
"""Blocks that a chain may lose (two epochs of Ethereum, or a node behind the others of its address)."""
LOG_RANGE = 2_000
"""Blocks in which events are searched for at once, at first and at most."""
_BOLD_AFTER = 32
"""Accepted ranges in a row before a larger one is tried again: a limit of results may hold for a few blocks only."""
_TRIES = 3

DEVELOPMENT_CHAINS = frozenset([31337, 1337, 131277322940537])
"""Chain ids of anvil and hardhat, of ganache, and of the embedded chain. They make blocks on demand, so the time
between two blocks means little, and blocks are never taken back."""


class ChainNode:
    """A chain behind a transport, or behind a user's `Web3` with its provider and middleware.
    `confirmations`: how many blocks deep an event has to be before `logs` shows it.

    Every method raises ChainUnavailable (no answer), InvalidAnswer (nonsense) and RpcRefused (the node says no).
    """

    def __init__(
        self,
        source: Transport | Web3 | BaseProvider,
        *,
        confirmations: int = 0,
        stop: threading.Event | None = None,
    ) -> None:
        """stop: ends every wait for this chain at once."""
        if not isinstance(source, Transport):
            # Imported here because web3 takes longer than most commands.
            from tiebreak.rpc.web3_providers import Web3Transport

            source = Web3Transport(source)
        self._transport = source
        self.confirmations = confirmations
        self.stop = stop
        self._chain_id: int | None = None
        self._newest = 0
        """The highest block up to which `logs` has searched."""
        self._view = self.view
        self._range, self._accepted = LOG_RANGE, 0
        """Blocks in which events are searched for at once, and how often in a row that was accepted."""

    @functools.cached_property
    def w3(self) -> Web3:
        """The `Web3` behind this chain, a user's or one over its transport."""
        from tiebreak.rpc.web3_providers import web3_over

        return web3_over(self._transport)

    @property
    def name(self) -> str:
        return self._transport.name

    @property
    def confirmations(self) -> int:
        return self._confirmations

    @confirmations.setter
    def confirmations(self, blocks: int) -> None:
        self._confirmations = blocks
        self._transport.set_confirmations(blocks)

    @property
    def agreement(self) -> NodeAgreement:
        """Agreement of the nodes behind this chain; a single one agrees with itself."""
        return self._transport.agreement

    @property
    def view(self) -> int:
        """Generation counter: it changes when another node becomes the trusted one, and cached chain data are stale."""
        return self._transport.view

    @property
    def chain_id(self) -> int:
        if self._chain_id is None:
            self._chain_id = answers.quantity(self.ask("eth_chainId"), "the chain id", 2**64 - 1)
        return self._chain_id

    def head(self) -> Block:
        """Return the newest block."""
        found = self.ask("eth_getBlockByNumber", "latest", False)
        if found is None:
            raise InvalidAnswer(f"{self.name} has no newest block: use another node.")
        return read(Block, found, "a block")

    def now(self) -> int:
        """Return the time (seconds since 1970) of a block that came now; on a quiet chain it runs ahead of the newest
        block's, which it is where the node does not build pending blocks."""
        newest = self.head().timestamp
        try:
            pending = self.ask("eth_getBlockByNumber", "pending", False)
        except RpcRefused:
            return newest
        if pending is None:
            return newest
        timestamp = answers.record(pending, "the pending block").get("timestamp")
        return max(newest, answers.quantity(timestamp, "the pending block's time", 2**64 - 1))

    def block(self, number: int) -> Block | None:
        """Return the block of that number, None if there is none yet."""
        found = self.ask("eth_getBlockByNumber", hex(number), False)
        if found is None:
            return None
        block = read(Block, found, "a block")
        if block.number != number:
            raise InvalidAnswer(
                f"{self.name} gave block {block.number} where {number} was asked for: use another node."
            )
        return block

    def transactions_of(self, number: int) -> frozenset[bytes] | None:
        """Return the hashes of a block's transactions, None if there is no such block yet."""
        block = self.block(number)
        if block is None:
            return None
        if block.transactions is None:
            raise InvalidAnswer(f"{self.name} gave block {number} without its transactions: use another node.")
        return frozenset(block.transactions)

    def balance(self, account: ChecksumAddress, *, block: int | None = None) -> int:
        """Return the balance of an account now, or after block number `block`, in wei."""
        return answers.quantity(self.ask("eth_getBalance", account, _tag(block)), "a balance")

    def code(self, account: ChecksumAddress) -> bytes:
        return answers.data(self.ask("eth_getCode", account, "latest"), "a contract's code")

    def nonce(self, account: ChecksumAddress, *, pending: bool = False, block: int | None = None) -> int:
        """Return how many transactions of an account are in blocks (up to number `block`), with `pending` with those
        that wait for one."""
        tag = "pending" if pending else _tag(block)
        return answers.quantity(self.ask("eth_getTransactionCount", account, tag), "a nonce", 2**64 - 1)

    def priority_fee(self) -> int:
        """Return the wei per gas that block builders are paid at present to take a transaction soon."""
        return answers.quantity(self.ask("eth_maxPriorityFeePerGas"), "a priority fee", 10**15)

    def call(
        self,
        to: ChecksumAddress,
        data: bytes,
        *,
        sender: ChecksumAddress | None = None,
        value: int = 0,
        block: int | None = None,
    ) -> bytes:
        """Return the result of a call on the newest block, or on the state after number `block`. RpcRefused.data holds
        what a revert returned."""
        return answers.data(self.ask("eth_call", _call(to, data, sender, value), _tag(block)), "a call")

    def estimate_gas(self, to: ChecksumAddress | None, data: bytes, *, sender: ChecksumAddress, value: int = 0) -> int:
        """Return the gas that a transaction is expected to use."""
        answer = self.ask("eth_estimateGas", _call(to, data, sender, value))
        found = answers.quantity(answer, "a gas estimate", 2**40)
        # Intrinsic gas (Yellow Paper, section 6.2): no node takes a transaction that has less.
        if found < (least := 21_000 + 16 * len(data) - 12 * data.count(0)):
            raise InvalidAnswer(
                f"{self.name} estimates {found} gas for a transaction whose data alone take {least}: use another node."
            )
        return found

    def send_raw(self, signed: bytes) -> bytes:
        """Hand a signed transaction to the node and return its hash."""
        return answers.data(self.ask("eth_sendRawTransaction", "0x" + signed.hex()), "a transaction hash", 32)

    def receipt(self, transaction: bytes) -> TransactionReceipt | None:
        """Return the receipt of a transaction; None as long as no block has it."""
        answer = self.ask("eth_getTransactionReceipt", "0x" + transaction.hex())
        if answer is None:
            return None
        found = read(TransactionReceipt, answer, "a receipt")
        if found.transaction != transaction:
            raise InvalidAnswer(f"{self.name} gave the receipt of another transaction: use another node.")
        return found

    def transaction(self, name: bytes) -> Transaction | None:
        """Return the transaction with this hash; None if the node does not know it."""
        answer = self.ask("eth_getTransactionByHash", "0x" + name.hex())
        if answer is None:
            return None
        found = read(Transaction, answer, "a transaction")
        if found.hash != name:
            raise InvalidAnswer(f"{self.name} gave another transaction: use another node.")
        return found

    def logs(
        self,
        address: ChecksumAddress,
        *,
        from_block: int,
        to_block: int | None = None,
        topics: Sequence[Topic] = (),
    ) -> list[Log]:
        """Return all events of a contract in the order in which they happened, from `from_block` up to `to_block` (the
        newest confirmed block if None), both included.

        `topics[i]`, if not None, must be, or hold, the event's i-th topic (32 bytes).

        Where the node cannot have shown them all, because its newest block is not one that it has, lies before
        `from_block`, or far before one that it had, that is InvalidAnswer, and not a list that is too short.
        """
        for _ in range(_TRIES):
            last = self._last_block(from_block, to_block)
            if last is None:
                return []
            found = self.all_logs(address, from_block, last.number, topics)
            # A node that has lost that block meanwhile may have left out what came before it.
            if (after := self.block(last.number)) is not None and after.hash == last.hash:
                self._newest = max(self._newest, last.number)
                return found
        raise InvalidAnswer(f"{self.name} takes blocks back while it is asked for events: ask again, or another node.")

    def _last_block(self, from_block: int, to_block: int | None) -> Block | None:
        """Return the last block to search, which the node has; None if there is nothing to search yet."""
        newest = self.head()
        if self.view != self._view:
            self._view, self._newest = self.view, 0
        if newest.number < max(from_block - 1, self._newest - MAX_REORGANISATION):
            raise InvalidAnswer(
                f"{self.name} says that its newest block is {newest.number}, after it had block "
                f"{max(from_block - 1, self._newest)}: wait until it has caught up, or use another node."
            )
        last = newest.number - self.confirmations if to_block is None else min(to_block, newest.number)
        if last < from_block:
            return None
        # A node may name a newest block that it does not have.
        if last - from_block >= MAX_BLOCKS or (found := self.block(last)) is None:
            raise InvalidAnswer(
                f"{self.name} says that its newest block is {newest.number}, but does not have block {last}: use "
                "another node."
            )
        return found

    def all_logs(self, address: ChecksumAddress, first: int, last: int, topics: Sequence[Topic] = ()) -> list[Log]:
        """Return a contract's events from block `first` to block `last` in order, believed as they come: a node that
        lags behind may leave some out. One request where the node's limits allow it."""
        found: list[Log] = []
        while first <= last:
            until = min(first + self._range - 1, last)
            logs = self._range_of_logs(address, first, until, topics)
            if logs is not None:
                found += logs
                first = until + 1
                if len(found) > MAX_LOGS:
                    raise InvalidAnswer(f"{self.name} gave more than {MAX_LOGS} events: ask for fewer blocks.")
        order = [(log.block, log.index) for log in found]
        if order != sorted(set(order)):
            raise InvalidAnswer(f"{self.name} gave events twice or out of order: use another node.")
        return found

    def _range_of_logs(
        self, address: ChecksumAddress, first: int, until: int, topics: Sequence[Topic]
    ) -> list[Log] | None:
        """Ask for the events of a range of blocks at once; None if it was refused, and the next is to be smaller.

        Hosted nodes limit the range of blocks, or the size of the answer, each at another place and in its own words.
        So every refusal is taken for such a limit: the range is halved, down to one block, and grows again later.
        """
        wanted = {
            "address": address,
            "fromBlock": hex(first),
            "toBlock": hex(until),
            "topics": to_json(topics),
        }
        try:
            logs = read_logs(self.ask("eth_getLogs", wanted))
        except RpcRefused:
            if first == until:
                raise
            self._range, self._accepted = (until - first + 1) // 2, 0
            return None
        for log in logs:
            matches = all(fits(log.topics[i : i + 1], topic) for i, topic in enumerate(topics))
            if log.address != address or not first <= log.block <= until or not matches:
                raise InvalidAnswer(f"{self.name} gave events that were not asked for: use another node.")
        self._accepted += 1
        if self._accepted >= _BOLD_AFTER:
            self._range, self._accepted = min(2 * self._range, LOG_RANGE), 0
        return logs

    def advance_time(self, seconds: int) -> None:
        """Mine a block on a development chain that is `seconds` (at least 1) later than the newest one; its clock
        runs on from there. Raises DevnetError on any other chain.
        """
        # Counted from the newest block, not from the clock: blocks in quick succession run ahead of it.
        try:
            self.ask("evm_setNextBlockTimestamp", self.head().timestamp + seconds)
            self.ask("evm_mine")
        except RpcRefused as error:
            raise DevnetError(f"{self.name} did not travel in time: use a development chain.") from error

    def ask(self, method: str, *params: object) -> object:
        """Return the answer to a question of JSON-RPC, unchecked. Raises the errors of this class."""
        return self._transport.request(method, [*params])


def connect(location: str, *, confirmations: int = 0, stop: threading.Event | None = None) -> ChainNode:
    """Return the chain at `location`: an http(s) URL of a node, or the path of its socket (it has a slash, or ends in
    ``.ipc``).

    stop: ends every request and every wait for this chain at once, with Stopped.

    Raises ChainUnavailable if nobody answers there.
    """
    node = ChainNode(transport_to(location, stop), confirmations=confirmations, stop=stop)
    try:
        node.chain_id  # noqa: B018  an address where nobody answers is noticed here, not in the middle of something
    except (InvalidAnswer, RpcRefused) as error:
        raise ChainUnavailable(f"{node.name} is not an Ethereum node: check the address.") from error
    return node


def transport_to(location: str, stop: threading.Event | None, **options: Any) -> Transport:
    """Return the transport to a location as of `connect`; `options`: those of HttpTransport, of which a socket has
    `timeout` alone. Raises ChainUnavailable if it is none."""
    if location.partition("://")[0] in ("http", "https"):
        return HttpTransport(location, stop=stop, **options)
    if "://" not in location and ("/" in location or location.endswith(".ipc")):
        # Imported here because web3 takes longer than most commands.
        from tiebreak.rpc.web3_providers import IpcTransport

        return IpcTransport(location, stop=stop, timeout=options.get("timeout", 10.0))
    raise ChainUnavailable(
        "the chain's address is neither an http(s) URL nor the path of a socket: use the form http://127.0.0.1:8545 or "
        "/path/to/node.ipc."
    )


def _tag(block: int | None) -> str:
    return "latest" if block is None else hex(block)


def _call(to: ChecksumAddress | None, data: bytes, sender: ChecksumAddress | None, value: int) -> dict[str, str]:
    call = {"data": "0x" + data.hex(), "value": hex(value)}
    if to is not None:
        call["to"] = to
    if sender is not None:
        call["from"] = sender
    return call


_SLOWEST = 60.0
"""Seconds. A development chain without transactions has hours between two blocks, which says nothing about the next."""

_WINDOW = 6
"""Blocks from which the pace is taken."""


def block_time(node: ChainNode, blocks: int = 50) -> float:
    """Return the seconds a block, measured over the last `blocks`; 0.0 for a chain that has none yet. Two requests."""
    head = node.head()
    first = node.block(max(0, head.number - blocks))
    if first is None or head.number <= first.number:
        return 0.0
    return max(0, head.timestamp - first.timestamp) / (head.number - first.number)


class BlockPace:
    """Predicts the next block from those that were seen. `clock`: seconds, as `time.monotonic`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[Block, float]] = deque(maxlen=_WINDOW)

    def observe(self, block: Block) -> None:
        """Take in the newest block as a node has just shown it."""
        if not self._seen or block.number > self._seen[-1][0].number:
            self._seen.append((block, self._clock()))

    @property
    def interval(self) -> float | None:
        """Seconds a block; None while fewer than two were seen."""
        if len(self._seen) < 2:
            return None
        (first, since), (last, until) = self._seen[0], self._seen[-1]
        blocks = last.number - first.number
        by_the_chain = max(0, last.timestamp - first.timestamp) / blocks
        by_our_clock = (until - since) / blocks
        # Blocks are seen late by up to one interval. A development chain's clock says nothing about ours.
        return min(by_the_chain, 1.5 * by_our_clock, _SLOWEST)

    def due(self) -> float:
        """Return the seconds until the next block is to be expected; 0.0 once it may be there."""
        interval = self.interval
        if interval is None:
            return 0.0
        last, until = self._seen[-1]
        # Least time from a block's timestamp until it is there, by our clock.
        delay = min(at - block.timestamp for block, at in self._seen)
        expected = min(until, last.timestamp + delay) + interval
        return max(0.0, expected - self._clock())

    def now(self) -> int:
        """Return the chain's time in seconds since 1970, without asking: the newest block's and what has passed since.

        0 while no block was seen."""
        if not self._seen:
            return 0
        last, until = self._seen[-1]
        return last.timestamp + int(self._clock() - until)
