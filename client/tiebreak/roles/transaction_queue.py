"""The transaction queue of a role: reads the chain once a look for all of its jobs, and sends all of its transactions.

Nothing here waits for a block. Orders of one look are sent together, as many in one transaction as fit; a later look
reads their results. A batch is tried with a call before it is sent, so that what would fail now costs nothing and gets
the contract's own error. What fails only in its block undoes only itself; the newest view of the game shows it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from eth_typing import ChecksumAddress

from tiebreak.contract.code import is_adjudicator
from tiebreak.contract.contract_watch import ContractWatch, News
from tiebreak.contract.events import JobPosted
from tiebreak.rpc.chain_errors import ChainError, ContractError, NodesDisagree, RpcRefused
from tiebreak.rpc.node import DEVELOPMENT_CHAINS, block_time
from tiebreak.rpc.transport import UNDERTAKINGS
from tiebreak.transactions.sender import GAS_MARGIN, Sender
from tiebreak.transactions.signer import Funds, Sent, funds, purpose_of
from tiebreak.transactions.spending import UNDERTAKING_GAS, Spending, SpendingLimit

if TYPE_CHECKING:
    from tiebreak.contract.contract_calls import ContractCall
    from tiebreak.contract.game import VerificationGame
    from tiebreak.contract.structs import GameView, JobView
    from tiebreak.rpc.answers import TransactionReceipt

BATCH_GAS = 12_000_000
"""Largest gas limit of a batch; the protocol allows 16.78 million a transaction (EIP-7825)."""

BATCH_BYTES = 120_000
"""Largest size of a batch: nodes do not pass on a transaction of more than 128 KiB."""

_ALWAYS_ESTIMATED = frozenset(["inTurn", "proveElement", "proveSegment", "disputeSum", "postChunk", "openPartials"])
"""Calls whose cost depends on their arguments; all others cost much the same each time."""

_OVERHEAD = 21_000 + 10_000
_ITEM_BYTES = 64


@dataclass(frozen=True, slots=True)
class Submitted:
    """A move that would fail now (`error`), or is on its way (`sent`)."""

    move: ContractCall
    error: ChainError | None
    sent: Sent | None


class MoveBatches:
    """Packs the moves of one account into transactions, and remembers the gas of each kind of move."""

    def __init__(self, contract: VerificationGame, sender: Sender) -> None:
        """contract: writes with `sender`."""
        self._contract = contract.by(sender)
        self._sender = sender
        self._cost: dict[str, int] = {}

    def submit(self, moves: Sequence[ContractCall]) -> list[Submitted]:
        """Send all moves, calls without value, that would succeed now, in as few transactions as possible, and wait
        for no block.

        Requests: one call for each transaction, one estimate for each kind of move that was never made (and for each
        proof), and what `Sender.submit` asks. Raises the errors of ChainNode.
        """
        done: list[Submitted] = []
        for pack in self._packs(moves, done):
            done += self._send(pack)
        return done

    def _packs(
        self, moves: Sequence[ContractCall], refused: list[Submitted]
    ) -> Iterator[list[tuple[ContractCall, int]]]:
        """Return groups within the bounds, each move with its gas limit; what fails by itself goes to `refused`."""
        pack: list[tuple[ContractCall, int]] = []
        gas, size = _OVERHEAD, 0
        for move in moves:
            try:
                cost = self._gas(move)
            except ContractError as error:
                refused.append(Submitted(move, error, None))
                continue
            length = len(self._contract.encode(move)) + _ITEM_BYTES
            if pack and (gas + cost > BATCH_GAS or size + length > BATCH_BYTES):
                yield pack
                pack, gas, size = [], _OVERHEAD, 0
            pack.append((move, cost))
            gas, size = gas + cost, size + length
        if pack:
            yield pack

    def _gas(self, call: ContractCall) -> int:
        """Return gas limit within which the move succeeds. Raises ContractError if it would fail now."""
        known = self._cost.get(call.function)
        if known is not None and call.function not in _ALWAYS_ESTIMATED:
            return known
        data = self._contract.encode(call)
        try:
            used = self._sender.node.estimate_gas(self._contract.address, data, sender=self._sender.address)
        except RpcRefused as error:
            if error.data is None:
                raise
            raise self._contract.explain(error.data) from error
        limit = min(int(used * GAS_MARGIN), max(used, BATCH_GAS - _OVERHEAD))
        self._cost[call.function] = max(limit, self._cost.get(call.function, 0))
        return limit

    def _send(self, pack: Sequence[tuple[ContractCall, int]]) -> list[Submitted]:
        if len(pack) == 1:
            return [self._send_alone(*pack[0])]
        shown = self._contract.try_batch([move for move, _ in pack])
        good = [item for item, result in zip(pack, shown, strict=True) if not isinstance(result, ContractError)]
        failed = [
            Submitted(move, result, None)
            for (move, _), result in zip(pack, shown, strict=True)
            if isinstance(result, ContractError)
        ]
        if len(good) < 2:
            return failed + [self._send_alone(*item) for item in good]
        # Not estimated: a batch succeeds also when its items run out of gas, so that a node would find too little.
        sent = self._sender.submit(
            self._contract.address,
            self._contract.encode(self._contract.batch([move for move, _ in good])),
            # Without a name of its own: what failed only in its block has to go out again, in the same company.
            gas=_OVERHEAD + sum(gas for _, gas in good),
        )
        return failed + [Submitted(move, None, sent) for move, _ in good]

    def _send_alone(self, move: ContractCall, gas: int) -> Submitted:
        sent = self._sender.submit(self._contract.address, self._contract.encode(move), purpose=move.purpose, gas=gas)
        return Submitted(move, None, sent)


SLOWEST_BLOCKS = 30.0
_SLOWEST_ON_DEMAND = 12.0
"""Most seconds between two blocks that a measurement may give; for development chains, those of the chain that they
imitate."""

MOST_UNDER_WAY = 12
"""Most transactions that wait for a block; with that many, orders wait for the next look."""

MOST_NEW_JOBS = 1000
"""Most jobs that one look takes in; the others are left for the next."""

_RANGES = (4, 16, 64)
_SECONDS_BETWEEN_BALANCES = 30.0
_ALL_JOBS_AFTER = 100  # blocks after which the number of jobs is asked for, whatever the events say


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A call of the contract, ordered by a role. `sent` is called with the receipt, `failed` with the error."""

    call: ContractCall
    sent: Callable[[TransactionReceipt], None]
    failed: Callable[[ChainError], None]


class TransactionQueue:
    """The view of the chain and the sending of transactions, for one account."""

    def __init__(self, contract: VerificationGame, sender: Sender) -> None:
        self.contract = contract
        self.watch = ContractWatch(contract)
        self._sender = sender
        self._batches = MoveBatches(contract, sender)
        self._block_seconds: float | None = None
        self._funds: Funds | None = None
        self._funds_at = 0.0
        self._has_paid = False
        """Whether a payment was mined since the balance was read."""
        self._credit: tuple[bytes, int] | None = None
        """A block's hash, and the account's credit then."""
        self._adjudicators: set[ChecksumAddress] = set()
        self._orders: dict[str, Order] = {}
        self.spending: Spending | None = None
        """Record of the money in new undertakings; None: nobody counts it."""
        self._reached_limit: SpendingLimit | None = None
        self._under_way: list[tuple[Sent, dict[str, Order]]] = []
        """Transactions, and the orders in each."""
        self._jobs = 0
        self._jobs_asked_at: int | None = None

    # Looking.

    @property
    def is_busy(self) -> bool:
        """Whether any order is not sent yet, or has no known result."""
        return bool(self._orders or self._under_way)

    def look(self) -> News | None:
        """Read results of transactions and news of the chain, once."""
        if self._sender.reserve.missing:
            self._sender.reserve.fill()
        self._read_results()
        news = self.watch.look()
        if news is not None:
            posted = [event.job for event in news.events if isinstance(event, JobPosted)]
            self._jobs = max(self._jobs, *posted, 0)
            if any(isinstance(event, JobPosted) for event in news.taken_back):
                self._jobs_asked_at = None
        return news

    def job_count(self) -> int:
        """Return number of jobs ever posted."""
        head = self.watch.head
        assert head is not None, "look first"
        if self._jobs_asked_at is None or not 0 <= head.number - self._jobs_asked_at < _ALL_JOBS_AFTER:
            self._jobs, self._jobs_asked_at = self.contract.job_count(), head.number
        return self._jobs

    def jobs_after(self, seen: int) -> Iterator[tuple[int, JobView]]:
        """Return the next jobs with numbers above `seen`, read together; they are followed from now on."""
        # A node may make their number up.
        new = range(seen + 1, min(self.job_count(), seen + MOST_NEW_JOBS) + 1)
        for number in new:
            self.watch.follow(number)
        if new:
            self.watch.read_games(())  # reads all that is followed and not at hand
        for number in new:
            try:
                yield number, self.watch.job(number)
            except ContractError:
                return  # taken back, or not shown yet: the next look asks again

    def games_of(self, job: int) -> dict[int, GameView]:
        """Return all games of a job, read together."""
        numbers = self.watch.games_of(job)
        self.watch.read_games(numbers)
        return {number: self.watch.game(number) for number in numbers}

    def block_seconds(self) -> float:
        """Return seconds between two blocks; measured once.

        It is the least average over several ranges, because a clock of a development chain that was moved makes one
        average too large."""
        if self._block_seconds is None:
            measured = [block_time(self.contract.node, blocks) for blocks in _RANGES]
            on_demand = self.contract.node.chain_id in DEVELOPMENT_CHAINS
            self._block_seconds = min(_SLOWEST_ON_DEMAND if on_demand else SLOWEST_BLOCKS, *measured)
        return self._block_seconds

    def funds(self, bond: int, clock: float, *, job: int | None = None) -> Funds:
        """Return balance of the account without what is on its way to other jobs, and the amount needed for a bond and
        a dispute. It is read twice a minute for all bonds, and anew once something was paid: many jobs in one look must
        not all count on the same money."""
        if self._funds is None or self._has_paid or clock - self._funds_at > _SECONDS_BETWEEN_BALANCES:
            self._funds, self._funds_at = funds(self.contract.node, self._sender.address, bond), clock
            self._has_paid = False
        waiting = [self._orders, *(orders for _, orders in self._under_way)]
        payments = [order for orders in waiting for order in orders.values() if order.call.value]
        promised = sum(order.call.value for order in payments if order.call.arguments[0] != job)
        return replace(self._funds, bond=bond, balance=max(0, self._funds.balance - promised))

    def credit(self) -> int:
        """Return the wei that the contract owes to the account, asked once a block: of a thousand jobs that are over
        each asks."""
        head = self.watch.head
        assert head is not None, "look first"
        if self._credit is None or self._credit[0] != head.hash:
            # As of the block that was seen: a node that lags behind it refuses, instead of showing an older state.
            self._credit = head.hash, self.contract.credit_of(self._sender.address, block=head.number)
        return self._credit[1]

    def is_adjudicator(self, address: ChecksumAddress) -> bool:
        """Return whether the code at `address` is this version's adjudicator; read again until it is."""
        if address not in self._adjudicators and is_adjudicator(self.contract.node, address):
            self._adjudicators.add(address)
        return address in self._adjudicators

    # Sending.

    def put(self, order: Order) -> bool:
        """Take an order for the next `flush`. False if an order with the same name is under way, or if it begins
        something while the nodes contradict each other or a limit on spending is reached; `failed` is called then."""
        call = order.call
        name = call.purpose or purpose_of(self.contract.address, self.contract.encode(call), call.value)
        if name in self._orders or any(name in orders for _, orders in self._under_way):
            return False
        try:
            self._begin(name, order)
        except (NodesDisagree, SpendingLimit) as error:
            order.failed(error)
            return False
        self._orders[name] = order
        return True

    def _begin(self, name: str, order: Order) -> None:
        """Put a new undertaking on record. Raises NodesDisagree, SpendingLimit if it has to wait."""
        if order.call.function not in UNDERTAKINGS:
            return
        self.contract.node.agreement.require(order.call.function)
        if self.spending is not None:
            job = int(str(order.call.arguments[0]))
            self.require_allowed(job, order.call.value, name=name)
            self.spending.enter(name, job, self._cost(order.call.value), self._now())

    def require_allowed(self, job: int, bond: int, *, name: str | None = None) -> None:
        """Raise SpendingLimit if a limit does not allow a new undertaking in a job, with a bond of so many wei."""
        if self.spending is None:
            return
        try:
            self.spending.require(name, job, self._cost(bond), self._now())
        except SpendingLimit as error:
            self._reached_limit = error
            raise

    def reached_limit(self) -> SpendingLimit | None:
        """Return the limit that has held something back since the last call; None if none has."""
        reached, self._reached_limit = self._reached_limit, None
        return reached

    def _cost(self, value: int) -> int:
        """Return the wei that an undertaking takes, reckoned high."""
        return value + UNDERTAKING_GAS * (0 if self._funds is None else self._funds.price)

    def _now(self) -> int:
        head = self.watch.head
        return max(self.watch.now(), 0 if head is None else head.timestamp)

    def _settle(self, name: str, order: Order, receipt: TransactionReceipt | None) -> None:
        """Take in what an undertaking has come to; None: it was not sent."""
        if order.call.function not in UNDERTAKINGS or self.spending is None:
            return
        with contextlib.suppress(SpendingLimit):  # the disk is full: the higher amount stays
            if receipt is None:
                self.spending.cancel(name)
            else:
                value = order.call.value if receipt.succeeded else 0
                self.spending.settle(name, receipt.fee + value, failed=not receipt.succeeded)

    def flush(self) -> bool:
        """Send all orders. True if one of them is mined already, so that another look is worth it."""
        if not self._orders or len(self._sender.pending) >= MOST_UNDER_WAY:
            return False
        orders, self._orders = self._orders, {}
        submissions: dict[Sent, dict[str, Order]] = {}
        for name, order in orders.items():
            if order.call.value and (sent := self._submitted(name, order)) is not None:
                submissions.setdefault(sent, {})[name] = order
        moves = {name: order for name, order in orders.items() if not order.call.value}
        for name, sent in self._submitted_together(moves):
            submissions.setdefault(sent, {})[name] = moves[name]
        self._under_way += submissions.items()
        return bool(submissions) and self._read_results()

    def _submitted(self, name: str, order: Order) -> Sent | None:
        """Return a payment, sent in a transaction of its own; None if it is refused."""
        data = self.contract.encode(order.call)
        try:
            return self._sender.submit(self.contract.address, data, value=order.call.value, purpose=name)
        except RpcRefused as error:
            self._refuse(name, order, error if error.data is None else self.contract.explain(error.data))
        except ChainError as error:
            self._refuse(name, order, error)
        return None

    def _refuse(self, name: str, order: Order, error: ChainError) -> None:
        """Tell that an order was not sent."""
        self._settle(name, order, None)
        order.failed(error)

    def _submitted_together(self, moves: dict[str, Order]) -> Iterable[tuple[str, Sent]]:
        """Return (name, transaction) of every order that is sent now. `failed` of all others is called."""
        if not moves:
            return
        try:
            answers = self._batches.submit([replace(order.call, purpose=name) for name, order in moves.items()])
        except ChainError as error:
            for name, order in moves.items():
                self._refuse(name, order, error)
            return
        for answer in answers:
            purpose = str(answer.move.purpose)
            if answer.error is not None:
                self._refuse(purpose, moves[purpose], answer.error)
            elif answer.sent is not None:
                yield purpose, answer.sent

    def _read_results(self) -> bool:
        """Read the results of transactions. Returns whether any order was mined since the last call."""
        if not self._under_way:
            return False
        self._sender.poll()
        mined = False
        for submission in list(self._under_way):
            sent, orders = submission
            receipt, error = sent.receipt, sent.error
            if receipt is None and error is None:
                continue
            self._under_way.remove(submission)
            self._has_paid |= any(order.call.value for order in orders.values())
            for name, order in orders.items():
                if receipt is not None:
                    self._settle(name, order, receipt)
                if receipt is not None and receipt.succeeded:
                    mined = True
                    order.sent(receipt)
                elif error is not None:
                    order.failed(error)
                else:
                    order.failed(ChainError("its transaction failed in its block"))
        return mined
