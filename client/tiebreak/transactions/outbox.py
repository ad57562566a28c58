"""The transactions of one account that are on their way: looked for, replaced when stuck, and forgotten in the end.

Every transaction is written into a journal before it is sent. All transactions for one intention have the same nonce,
so a block takes one of them at most. So an answer that is lost, a receipt that is late, a restart and a repeated call
all lead back to the same nonce. When a block proves that a foreign transaction (another process with the same key) has
used this one, a call without value takes another nonce, and a payment ends: the other process may have paid the same,
so that its caller has to look at the chain first.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tiebreak.rpc.answers import Block
from tiebreak.rpc.chain_errors import (
    REVERTED,
    ChainUnavailable,
    InsufficientFunds,
    InvalidAnswer,
    NonceTaken,
    RpcRefused,
    SignerError,
)
from tiebreak.rpc.node import MAX_REORGANISATION, BlockPace, ChainNode
from tiebreak.transactions.journal import Entry, Journal, Reserve
from tiebreak.transactions.pending_transactions import Sent, Use, receipt_of, who_used
from tiebreak.transactions.signer import Key, Signer

_KEPT_VALUE = 100_000  # blocks (two weeks) for which a payment is remembered
_GAP_SECONDS = 30.0
_SECOND_LOOK = 5.0  # seconds
_GAP_BLOCKS = 6


class Outbox(Signer):
    """The part of `Sender` that does not wait; its arguments are described there. `_lock` guards everything else."""

    def __init__(
        self,
        node: ChainNode,
        account: Key,
        *,
        directory: Path | None,
        max_fee: int,
        replace_after: int,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(node, account, max_fee)
        self._directory = directory
        self.reserve = Reserve(directory)
        """Bytes of the directory's disk that are kept for records of payments."""
        self._replace_after = replace_after
        self._clock = clock
        self._lock = threading.RLock()
        self._pending: dict[int, Sent] = {}
        self._next = 0
        self._pace = BlockPace(clock)
        self._view = node.view
        self._head_at = 0.0
        self._gap: tuple[int, int, float] | None = None
        """A nonce below ours that no block takes, with the block and time since it was seen."""

    @property
    def pending(self) -> tuple[Sent, ...]:
        """Transactions that no block has taken yet, in the order of their nonces."""
        with self._lock:
            return tuple(sent for _, sent in sorted(self._pending.items()) if not sent.done)

    def open(self) -> None:
        """Takes the directory for this process, before the first transaction does. Raises JournalInUse if another
        process has it, JournalError, and the errors of ChainNode; the directory is free again then."""
        with self._lock:
            try:
                self._open()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Lets another process send from this directory."""
        with self._lock:
            if self._journal is not None:
                self._journal.close()
                self._journal = None
                self._pending = {}

    # Knowledge of the chain.

    def _open(self) -> None:
        """Opens the journal and asks for the account's nonce, at the first use."""
        if self._journal is not None:
            return
        name = ""
        if self._directory is not None:
            first = self._node.block(0)
            if first is None:
                raise InvalidAnswer(f"{self._node.name} does not have block 0: use another node.")
            # Development chains share a chain id, and a new one begins with other blocks.
            name = f"{self._node.chain_id}-{first.hash.hex()[:8]}-{self.address}"
        journal = Journal(self._directory, name, self.reserve)
        try:
            entries = journal.load()
            waiting = self._node.nonce(self.address, pending=True)
        except BaseException:
            journal.close()
            raise
        self._pending = {}
        for entry in entries:
            twin = next((one for one in self._pending.values() if one.purpose == entry.purpose), None)
            if twin is not None and (twin.named or not (entry.heard or twin.entry.heard)):
                # A foreign transaction had taken the first nonce; the process died before it could forget it.
                del self._pending[twin.nonce]
                journal.remove(twin.entry)
            self._pending[entry.nonce] = Sent(entry, former=True)
        self._journal = journal
        self._next = max([waiting, *(nonce + 1 for nonce in self._pending)])
        if self._pending:
            self._poll()

    def _known(self, purpose: str) -> Sent | None:
        """The transaction that carries out this purpose; None if there is none, or if it is to be repeated."""
        for nonce, sent in sorted(self._pending.items(), reverse=True):
            if sent.purpose != purpose or sent.error is not None:
                continue
            if sent.receipt is not None and not sent.receipt.succeeded:
                if sent.entry.heard or sent.former:
                    # The caller has looked again since, and wants another attempt.
                    self._forget(nonce)
                    return None
                return sent
            if sent.receipt is not None and sent.entry.heard:
                shown = receipt_of(self._node, self.address, sent.entry, sent.receipt.transaction)
                if shown is None:
                    # A reorganisation has dropped it, and the node may have forgotten it as well.
                    sent.receipt = sent.taken = sent.offered_at = None
                    with contextlib.suppress(ChainUnavailable, InvalidAnswer, RpcRefused):
                        self._offer_again(sent)
                elif not sent.named:
                    return None  # a repetition on purpose
                else:
                    sent.receipt = shown
            return sent
        return None

    def _recent_head(self) -> Block:
        age = self._clock() - self._head_at
        if self._head is None or age > max(0.5, 0.5 * (self._pace.interval or 0.0)):
            self._see(self._node.head())
        assert self._head is not None
        return self._head

    def _see(self, head: Block) -> None:
        if self._node.view != self._view:
            # Another node is believed now, and its newest block counts, higher or lower.
            self._view, self._head, self._pace = self._node.view, None, BlockPace(self._clock)
        # A node that lags behind shows nothing new.
        if self._head is None or head.number >= self._head.number - MAX_REORGANISATION:
            self._head, self._head_at = head, self._clock()
            self._pace.observe(head)

    def _withdraw(self, sent: Sent) -> None:
        """Frees the nonce of a new transaction that the node has refused for good."""
        self._forget(sent.nonce)
        if self._next == sent.nonce + 1:
            self._next = sent.nonce

    def _forget(self, nonce: int) -> None:
        sent = self._pending.pop(nonce, None)
        if sent is not None and self._journal is not None:
            self._journal.remove(sent.entry)

    # All of them.

    def _poll(self, head: Block | None = None) -> list[Sent]:
        with self._lock:
            self._open()
            self._see(head if head is not None else self._node.head())
            if not self._pending:
                return []
            count = self._node.nonce(self.address)
            for nonce, sent in sorted(self._pending.items()):
                if sent.error is None:
                    # A fault of the node about one keeps no other waiting; the next look comes soon.
                    with contextlib.suppress(ChainUnavailable, InvalidAnswer, RpcRefused, SignerError):
                        self._look_at(sent, nonce < count)
            lowest = next((sent for _, sent in sorted(self._pending.items()) if not sent.done), None)
            with contextlib.suppress(SignerError):  # what was signed before is out, and can be heard of
                if lowest is not None and lowest.nonce == count:
                    self._push(lowest)
                self._watch_gap(count, lowest)
            ended = [sent for sent in self._pending.values() if sent.done and not sent.entry.heard and not sent.awaited]
            ended = [sent for sent in ended if not sent.former]
            for sent in ended:
                sent.entry.heard = True
                self._remember_end(sent)
            self._clear()
            return ended

    def _look_at(self, sent: Sent, used: bool) -> None:
        """Brings one intention up to date. used: whether the chain counts its nonce as used."""
        assert self._head is not None
        if used and sent.receipt is None:
            self._find_receipt(sent)
            if sent.receipt is None and self._is_foreign(sent):
                self._evade(sent)
        elif not used:
            if sent.receipt is not None and self._head.number >= sent.receipt.block:
                sent.receipt = sent.taken = (
                    None  # a reorganisation has dropped it; the node may have forgotten it as well
                )
                sent.offered_at = None
            if sent.receipt is None and sent.offered_at is None:
                self._offer_again(sent)

    def _is_foreign(self, sent: Sent) -> bool:
        """True if a foreign transaction has used the nonce, seen by two looks at different times.

        In the middle of a reorganisation the servers behind one address may show two chains at once."""
        assert self._head is not None
        depth = self._node.confirmations if sent.entry.value else 0
        use = who_used(self._node, self.address, sent, self._head.number, depth)
        if use is Use.OURS:
            sent.suspected = None
            self._find_receipt(sent)
        if use is not Use.FOREIGN:
            return False
        if sent.suspected is None:
            sent.suspected = self._head.number, self._clock()
            return False
        block, since = sent.suspected
        return self._head.number > block or self._clock() - since >= _SECOND_LOOK

    def _find_receipt(self, sent: Sent) -> None:
        # The newest are the likeliest; which of many it was is told by the block that has it.
        for name in sent.hashes[:2] if sent.taken is None else (sent.taken,):
            receipt = receipt_of(self._node, self.address, sent.entry, name)
            if receipt is not None:
                sent.receipt = receipt
                sent.offered_at = receipt.block if sent.offered_at is None else sent.offered_at
                return

    def _offer_again(self, sent: Sent) -> None:
        try:
            self._offer(sent)
        except RpcRefused:
            return  # it was taken once, and may be again: its nonce stays its own
        except InsufficientFunds:
            return

    def _push(self, sent: Sent) -> None:
        """Replaces a transaction that is stuck, counted in blocks: while no block comes, no fee helps."""
        assert self._head is not None
        if sent.offered_at is not None and self._head.number - sent.offered_at >= self._replace_after:
            self._raise_offer(sent)
            self._offer_again(sent)

    def _watch_gap(self, count: int, lowest: Sent | None) -> None:
        """Fills a nonce that nobody uses, so that what comes after it can go on.

        A former life without a journal, or another process, has sent something there that no block takes; or the node
        had counted a transaction that it then lost. It is another intention's nonce, so an empty transaction takes it.
        """
        assert self._head is not None
        if lowest is None or lowest.nonce <= count:
            self._gap = None
            return
        if self._gap is None or self._gap[0] != count:
            self._gap = count, self._head.number, self._clock()
        _, block, since = self._gap
        if self._head.number - block < _GAP_BLOCKS and self._clock() - since < _GAP_SECONDS:
            return
        entry = Entry(
            purpose=f"fill the gap at nonce {count}", nonce=count, to=self.address, data=b"", value=0, gas=21_000,
            since=self._head.number, heard=True,
        )  # fmt: skip
        filler = Sent(entry)
        self._sign(filler, self._offers.first(self._head))
        self._pending[count] = filler
        self._offer_again(filler)

    def _evade(self, sent: Sent) -> None:
        """Sends a call again with a new nonce, after a foreign transaction has used its own."""
        old = sent.entry
        if old.value:
            sent.error = NonceTaken(
                f"another process has sent from account {self.address} in place of this payment, and may have paid the "
                "same: look at the chain again, and stop one of the two."
            )
            return
        assert self._head is not None and self._journal is not None
        try:
            gas = self._gas(old.to, old.data, old.value)
        except RpcRefused as error:
            if error.data is None and error.code != REVERTED:
                raise
            sent.error = error
            return
        except InsufficientFunds as error:
            sent.error = error
            return
        nonce = max(self._next, self._node.nonce(self.address, pending=True))
        fees = self._offers.first(self._head)
        new = replace(old, nonce=nonce, gas=gas, since=self._head.number, signed=[])
        sent.entry = new
        self._sign(sent, fees)
        sent.suspected = sent.between = sent.taken = sent.offered_at = None
        del self._pending[old.nonce]
        self._pending[nonce] = sent
        self._next = nonce + 1
        self._journal.remove(old)
        self._offer_again(sent)

    def _clear(self) -> None:
        """Forgets what has ended and what no reorganisation can bring back."""
        assert self._head is not None
        for nonce, sent in list(self._pending.items()):
            if sent.error is not None and (sent.entry.heard or sent.former):
                self._forget(nonce)
            elif sent.receipt is not None:
                deep = self._head.number - sent.receipt.block
                remembered = sent.entry.value and (sent.named or not sent.entry.heard)
                kept = _KEPT_VALUE if remembered else MAX_REORGANISATION
                if deep > max(kept, self._node.confirmations) and not sent.awaited:
                    self._forget(nonce)
