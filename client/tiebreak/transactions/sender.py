"""Sends the transactions of one account, so that every intention is carried out once, whatever happens on the way.

Every transaction is written into a journal before it is sent. All transactions for one intention have the same nonce,
so a block takes one of them at most. So an answer that is lost, a receipt that is late, a restart and a repeated call
all lead back to the same nonce. When a block proves that a foreign transaction (another process with the same key) has
used this one, the intention ends: the other process may have done the same, so that its caller has to look at the chain
first.
"""

from __future__ import annotations

import contextlib
import hmac
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eth_typing import ChecksumAddress

from tiebreak.http_client import Halted, Pauses, pause
from tiebreak.rpc.answers import Block, Fees, TransactionReceipt
from tiebreak.rpc.chain_errors import (
    ChainError,
    ChainUnavailable,
    InsufficientFunds,
    InvalidAnswer,
    JournalError,
    NonceTaken,
    RpcRefused,
    SignerError,
    Stopped,
    TransactionFailed,
    TransactionPending,
)
from tiebreak.rpc.node import MAX_REORGANISATION, BlockPace, ChainNode
from tiebreak.transactions.journal import Entry, Journal, Reserve, Signed
from tiebreak.transactions.signer import Key, Offers, Sent, is_foreign, purpose_of, receipt_of

MAX_FEE = 1_000 * 10**9
"""Wei per gas that are offered at most by default: ten times what a busy day costs."""

GAS_MARGIN = 2.0
"""Gas limit over gas estimate: the state may change before the transaction is included. The second opening of a level
costs nearly twice as much as the first, and both sides send theirs at the same time."""

MOST_GAS = 16_777_216
"""Largest gas limit of one transaction (EIP-7825)."""

_LEAST_PAUSE, _PAUSE = 0.01, 1.0  # seconds between questions, a fraction of a block's time on public chains
_KEPT_VALUE = 100_000  # blocks (two weeks) for which a payment is remembered
_GAP_SECONDS = 30.0
_SECOND_LOOK = 5.0  # seconds
_GAP_BLOCKS = 6
_TRIES = 8
_REPLACE_AFTER = 3  # blocks after which a transaction that none has taken is replaced by one that pays more
_MOST_PENDING = 16  # transactions that wait for a block at the same time; a node keeps as many for certain


class Sender:
    """Signs and sends for `account`. Methods may be called from several threads.

    `directory`: where the journal lies (the role's own directory); None: in memory only, for commands that end at once.
    `max_fee`: wei per gas that are offered at most. `patience`: seconds for which `send` waits. `stop`: ends every wait
    at once (default: the node's). `clock` and `sleep` are there for tests and simulations.
    """

    def __init__(
        self,
        node: ChainNode,
        account: Key,
        *,
        directory: Path | None = None,
        max_fee: int = MAX_FEE,
        patience: float = 120.0,
        stop: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self.node, self.address, self._account = node, account.address, account
        self._offers = Offers(node, max_fee)
        self._journal: Journal | None = None
        self._head: Block | None = None
        self._directory = directory
        self.reserve = Reserve(directory)
        """Bytes of the directory's disk that are kept for records of payments."""
        self._clock = clock
        self._lock = threading.RLock()
        """Guards everything below."""
        self._pending: dict[int, Sent] = {}
        self._next = 0
        self._pace = BlockPace(clock)
        self._view = node.view
        self._head_at = 0.0
        self._gap: tuple[int, int, float] | None = None
        """A nonce below ours that no block takes, with the block and time since it was seen."""
        self._patience = patience
        self._stop = stop if stop is not None else node.stop
        self._sleep = sleep
        self._instant = True
        """True while blocks take transactions as soon as they are sent, so that asking at once pays."""

    def secret(self, name: bytes) -> bytes | None:
        """Return 32 bytes that follow from the key and a name, and that nobody can compute without the key
        (HMAC-SHA256, RFC 2104). None where the key is not at hand, as behind a remote signer."""
        key = getattr(self._account, "key", None)
        return None if key is None else hmac.digest(bytes(key), b"tiebreak secret\x00" + name, "sha256")

    def send(
        self,
        to: ChecksumAddress | None,
        data: bytes,
        *,
        value: int = 0,
        purpose: str | None = None,
        confirmations: int | None = None,
    ) -> TransactionReceipt:
        """Send a call (or with `to` None a contract's creation code) and wait for its receipt.

        `value` in wei; `purpose` as in `submit`; `confirmations`: blocks that have to lie on it (None: the node's).
        Raises RpcRefused when the call would revert (its `data` says why), InsufficientFunds, JournalError,
        TransactionFailed, TransactionPending.
        """
        return self.wait(self.submit(to, data, value=value, purpose=purpose), confirmations=confirmations)

    def submit(
        self,
        to: ChecksumAddress | None,
        data: bytes,
        *,
        value: int = 0,
        purpose: str | None = None,
        gas: int | None = None,
    ) -> Sent:
        """Send a call and do not wait for a block.

        `purpose`: the name of the intention, which is carried out once: while the journal remembers a transaction for
        it that has not failed, also one of a former life of this process, that is given back and nothing is sent.
        Without a name the call itself is the purpose, and may be repeated once its end was told. `gas`: the limit,
        where the caller knows better than an estimate. Raises SignerError, and what `send` raises before a transaction
        is out; from then on only the chain can say what becomes of it.
        """
        name = purpose_of(to, data, value) if purpose is None else purpose
        self._wait_for_room(name)
        with self._lock:
            self._open()
            known = self._known(name)
            if known is not None:
                return known
            limit = gas if gas is not None else self._gas(to, data, value)
            head = self._recent_head()
            entry = Entry(purpose=name, nonce=self._next, to=to, data=data, value=value, gas=limit, since=head.number)
            sent = Sent(entry)
            self._sign(sent, self._offers.first(head))
            self._pending[entry.nonce] = sent
            self._next += 1
            try:
                self._offer(sent)
            except (ChainUnavailable, InvalidAnswer, SignerError, Stopped):
                pass  # whether the node has it is unknown: from here on only the chain can say
            except ChainError:  # the node has refused it for good
                self._forget(sent.nonce)
                self._next = sent.nonce
                raise
            return sent

    def wait(self, sent: Sent, *, confirmations: int | None = None) -> TransactionReceipt:
        """Return the receipt, once it lies `confirmations` blocks deep (None: the node's), or the error that ended
        it."""
        depth = self.node.confirmations if confirmations is None else confirmations
        deadline = self._clock() + self._patience
        with self._lock:
            sent.awaited += 1
        try:
            self._wait_for_block(sent, deadline)
            while not self._settled(sent, depth):
                self._rest(min(_PAUSE, max(0.05, self._pace.due())))
                self.poll()
                if sent.receipt is None:
                    self._wait_for_block(sent, self._clock() + self._patience)
        finally:
            with self._lock:
                sent.awaited -= 1
        return self._heard(sent)

    def settle(self) -> None:
        """Wait until blocks have taken everything that this account has sent, for as long as patience lasts, so that
        the newest state shows what a former life of this process has done."""
        deadline = self._clock() + self._patience
        with self._lock:
            self._open()
        while self.pending or self.node.nonce(self.address, pending=True) > self.node.nonce(self.address):
            if self._clock() > deadline:
                return
            self.poll()
            self._rest(_PAUSE)

    @property
    def pending(self) -> tuple[Sent, ...]:
        """Transactions that no block has taken yet, in the order of their nonces."""
        with self._lock:
            return tuple(sent for _, sent in sorted(self._pending.items()) if not sent.done)

    def open(self) -> None:
        """Take the directory for this process, before the first transaction does. Raises JournalInUse if another
        process has it, JournalError, and the errors of ChainNode; the directory is free again then."""
        with self._lock:
            try:
                self._open()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Let another process send from this directory."""
        with self._lock:
            if self._journal is not None:
                self._journal.close()
                self._journal = None
                self._pending = {}

    # Waiting.

    def _wait_for_room(self, purpose: str) -> None:
        deadline = self._clock() + self._patience
        while len(waiting := self.pending) >= _MOST_PENDING:
            if any(sent.purpose == purpose for sent in waiting):
                return
            if self._clock() > deadline:
                raise TransactionPending(
                    f"{len(waiting)} transactions of {self.address} wait for a block: look again when it has come."
                )
            self.poll()
            self._rest(min(_PAUSE, max(0.05, self._pace.due())))

    def _wait_for_block(self, sent: Sent, deadline: float) -> None:
        pauses = Pauses(first=_LEAST_PAUSE, most=_PAUSE)
        if not self._instant and not sent.done:
            self._rest(max(_LEAST_PAUSE, self._pace.due()))
        while not self._is_taken(sent):
            self._instant = False
            if self._clock() > deadline:
                raise TransactionPending(
                    f"no block has taken transaction 0x{sent.hashes[0].hex()} yet: run the same command again later."
                )
            self._rest(max(pauses.next(), self._pace.due()))

    def _is_taken(self, sent: Sent) -> bool:
        """Return one look at one transaction: mostly it is there, and costs one request."""
        with self._lock:
            if not sent.done and sent.offered_at is not None:
                self._find_receipt(sent)
            if not sent.done:
                self.poll()
            return sent.done

    def _settled(self, sent: Sent, depth: int) -> bool:
        """Return whether the end of an intention lies deep enough in the chain that the node has now."""
        if sent.error is not None or depth == 0:
            return True
        with self._lock:
            if sent.receipt is None or self._head is None or self._head.number < sent.receipt.block + depth:
                return False
            # The receipt may be an old one, of a block that is no longer part of the chain.
            block = self.node.block(sent.receipt.block)
            if block is not None and block.hash == sent.receipt.block_hash:
                return True
            sent.receipt = None
            self._find_receipt(sent)
            return False

    def _heard(self, sent: Sent) -> TransactionReceipt:
        with self._lock:
            sent.entry.heard = True
            self._remember_end(sent)
            if sent.error is not None:
                self._forget(sent.nonce)
                raise sent.error
            assert sent.receipt is not None
            if not sent.receipt.succeeded:
                raise TransactionFailed(sent.receipt.transaction, sent.receipt.block)
            return sent.receipt

    def _rest(self, seconds: float) -> None:
        if self._sleep is not None:
            self._sleep(seconds)
            return
        try:
            pause(seconds, self._stop)
        except Halted as error:
            raise Stopped(
                "stopped while a transaction waited for its block (the journal has it): run the same command again to "
                "carry on."
            ) from error

    # Signing.

    def _gas(self, to: ChecksumAddress | None, data: bytes, value: int) -> int:
        try:
            gas = self.node.estimate_gas(to, data, sender=self.address, value=value)
        except RpcRefused as error:
            raise self._explained(error) from error
        return max(gas, min(int(gas * GAS_MARGIN), MOST_GAS))

    def _sign(self, sent: Sent, fees: Fees) -> None:
        """Sign a transaction for an intention and remember it. Raises JournalError and SignerError, and then nothing
        has changed."""
        entry = sent.entry
        transaction: dict[str, Any] = {
            "type": 2,
            "chainId": self.node.chain_id,
            "nonce": entry.nonce,
            "value": entry.value,
            "data": entry.data,
            "gas": entry.gas,
            "maxFeePerGas": fees.max_fee,
            "maxPriorityFeePerGas": fees.priority_fee,
        }
        if entry.to is not None:
            transaction["to"] = entry.to
        signed = self._account.sign_transaction(transaction)
        entry.signed.append(Signed(bytes(signed.hash), bytes(signed.raw_transaction), fees.max_fee, fees.priority_fee))
        try:
            self._remember(sent)
        except JournalError:
            entry.signed.pop()
            raise

    def _remember(self, sent: Sent) -> None:
        assert self._journal is not None
        try:
            self._journal.write(sent.entry)
        except JournalError:
            # A move without value is made once by the contract's own rules: a full disk must not lose a game.
            if sent.entry.value:
                raise

    def _offer(self, sent: Sent) -> None:
        """Hand the newest transaction of an intention to the node, and raise its fees where the node asks for it.

        Raises ChainUnavailable where it is not known whether the node has it, and another ChainError where the node
        will not take it at all."""
        for _ in range(_TRIES):
            newest = sent.entry.signed[-1]
            try:
                if self.node.send_raw(newest.raw) != newest.hash:
                    raise InvalidAnswer(f"{self.node.name} gave a foreign transaction hash: use another node.")
            except RpcRefused as error:
                reason = error.reason.lower()
                if "already known" in reason or "already imported" in reason or "already exists" in reason:
                    pass
                elif "nonce" in reason:
                    # Ours, whose answer was lost, or a foreign one: the next look tells them apart.
                    sent.offered_at = None
                    return
                elif "underpriced" in reason or "fee too low" in reason or "base fee" in reason:
                    # The transaction that holds the nonce may be ours as well, so it is outbid and never evaded.
                    if not self._raise_offer(sent):
                        return
                    continue
                else:
                    raise self._explained(error) from error
            sent.offered_at = self._head.number if self._head is not None else 0
            return

    def _raise_offer(self, sent: Sent) -> bool:
        """Sign a transaction that pays more; False if the cap does not allow it."""
        newest = sent.entry.signed[-1]
        fees = self._offers.raised(Fees(newest.max_fee, newest.priority_fee), self._head)
        if fees is None:
            return False
        self._sign(sent, fees)
        return True

    def _remember_end(self, sent: Sent) -> None:
        with contextlib.suppress(JournalError):  # the end will be told again after a restart, which does no harm
            self._remember(sent)

    def _explained(self, error: RpcRefused) -> ChainError:
        reason = error.reason.lower()
        if "insufficient funds" in reason or "insufficient balance" in reason:
            return InsufficientFunds(
                f"account {self.address} cannot pay for this on chain {self.node.chain_id}: send it some ether."
            )
        return error

    # Knowledge of the chain.

    def _open(self) -> None:
        """Open the journal and ask for the account's nonce, at the first use."""
        if self._journal is not None:
            return
        name = ""
        if self._directory is not None:
            first = self.node.block(0)
            if first is None:
                raise InvalidAnswer(f"{self.node.name} does not have block 0: use another node.")
            # Development chains share a chain id, and a new one begins with other blocks.
            name = f"{self.node.chain_id}-{first.hash.hex()[:8]}-{self.address}"
        journal = Journal(self._directory, name, self.reserve)
        try:
            entries = journal.load()
            waiting = self.node.nonce(self.address, pending=True)
        except BaseException:
            journal.close()
            raise
        self._pending = {}
        for entry in entries:
            self._pending[entry.nonce] = Sent(entry, former=True)
        self._journal = journal
        self._next = max([waiting, *(nonce + 1 for nonce in self._pending)])
        if self._pending:
            self.poll()

    def _known(self, purpose: str) -> Sent | None:
        """Return the transaction that carries out this purpose; None if there is none, or if it is to be repeated."""
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
                shown = receipt_of(self.node, self.address, sent.entry, sent.receipt.transaction)
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
            self._see(self.node.head())
        assert self._head is not None
        return self._head

    def _see(self, head: Block) -> None:
        if self.node.view != self._view:
            # Another node is believed now, and its newest block counts, higher or lower.
            self._view, self._head, self._pace = self.node.view, None, BlockPace(self._clock)
        # A node that lags behind shows nothing new.
        if self._head is None or head.number >= self._head.number - MAX_REORGANISATION:
            self._head, self._head_at = head, self._clock()
            self._pace.observe(head)

    def _forget(self, nonce: int) -> None:
        sent = self._pending.pop(nonce, None)
        if sent is not None and self._journal is not None:
            self._journal.remove(sent.entry)

    # All of them.

    def poll(self, head: Block | None = None) -> list[Sent]:
        """Return one look at all that is on its way; replaces what is stuck. Returns what a block has taken, or what
        ended in another way, since the last call and for nobody who waits.

        `head`: the newest block, if the caller has just asked for it. Two requests, and one for each transaction that
        was taken.
        """
        with self._lock:
            self._open()
            self._see(head if head is not None else self.node.head())
            if not self._pending:
                return []
            count = self.node.nonce(self.address)
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
        """Bring one intention up to date. used: whether the chain counts its nonce as used."""
        assert self._head is not None
        if used and sent.receipt is None:
            self._find_receipt(sent)
            if sent.receipt is None and self._is_foreign(sent):
                sent.error = NonceTaken(
                    f"another process has sent from account {self.address} in place of this transaction, and may have "
                    "done the same: look at the chain again, and stop one of the two."
                )
        elif not used:
            if sent.receipt is not None and self._head.number >= sent.receipt.block:
                # A reorganisation has dropped it; the node may have forgotten it as well.
                sent.receipt = sent.taken = sent.offered_at = None
            if sent.receipt is None and sent.offered_at is None:
                self._offer_again(sent)

    def _is_foreign(self, sent: Sent) -> bool:
        """Return whether a foreign transaction has used the nonce, seen by two looks at different times.

        In the middle of a reorganisation the servers behind one address may show two chains at once."""
        assert self._head is not None
        depth = self.node.confirmations if sent.entry.value else 0
        if not is_foreign(self.node, self.address, sent, self._head.number, depth):
            return False
        if sent.suspected is None:
            sent.suspected = self._head.number, self._clock()
            return False
        block, since = sent.suspected
        return self._head.number > block or self._clock() - since >= _SECOND_LOOK

    def _find_receipt(self, sent: Sent) -> None:
        # The newest are the likeliest; which of many it was is told by the block that has it.
        for name in sent.hashes[:2] if sent.taken is None else (sent.taken,):
            receipt = receipt_of(self.node, self.address, sent.entry, name)
            if receipt is not None:
                sent.receipt, sent.suspected = receipt, None
                sent.offered_at = receipt.block if sent.offered_at is None else sent.offered_at
                return

    def _offer_again(self, sent: Sent) -> None:
        # It was taken once, and may be again: its nonce stays its own.
        with contextlib.suppress(RpcRefused, InsufficientFunds):
            self._offer(sent)

    def _push(self, sent: Sent) -> None:
        """Replace a transaction that is stuck, counted in blocks: while no block comes, no fee helps."""
        assert self._head is not None
        if sent.offered_at is not None and self._head.number - sent.offered_at >= _REPLACE_AFTER:
            self._raise_offer(sent)
            self._offer_again(sent)

    def _watch_gap(self, count: int, lowest: Sent | None) -> None:
        """Fill a nonce that nobody uses, so that what comes after it can go on.

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

    def _clear(self) -> None:
        """Forget what has ended and what no reorganisation can bring back."""
        assert self._head is not None
        for nonce, sent in list(self._pending.items()):
            if sent.error is not None and (sent.entry.heard or sent.former):
                self._forget(nonce)
            elif sent.receipt is not None:
                deep = self._head.number - sent.receipt.block
                remembered = sent.entry.value and (sent.named or not sent.entry.heard)
                kept = _KEPT_VALUE if remembered else MAX_REORGANISATION
                if deep > max(kept, self.node.confirmations) and not sent.awaited:
                    self._forget(nonce)
