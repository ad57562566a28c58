"""A role's desk: one look at the chain for all its jobs, and one way out for all that it sends.

Nothing here waits for a block. Orders of one look go out together, as many in one transaction as fit; what became of
them is seen at a later look.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from tiebreak.chain.batch import Batches, Move
from tiebreak.chain.errors import ChainError, ContractError, RpcRefused
from tiebreak.chain.game import VerificationGame
from tiebreak.chain.node import Receipt
from tiebreak.chain.sender import Sender, Sent
from tiebreak.chain.watch import News, Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A call of the contract that a role wants to be made.

    `purpose`: the same for the same intention, so that it is not carried out twice; None: the call itself is the
    intention. `sent` is told the receipt, `failed` why there is none. `value` in wei."""

    function: str
    arguments: tuple[object, ...]
    sent: Callable[[Receipt], None]
    failed: Callable[[ChainError], None]
    value: int = 0
    purpose: str | None = None


class Desk:
    """Looks and sends for one account."""

    def __init__(self, contract: VerificationGame, sender: Sender) -> None:
        self.contract = contract
        self.watch = Watch(contract)
        self._sender = sender
        self._batches = Batches(contract.address, sender, contract.abi)
        self._orders: dict[str, tuple[Order, bytes]] = {}
        self._under_way: list[tuple[Sent, list[tuple[str, Order]]]] = []

    @property
    def is_busy(self) -> bool:
        """Whether anything was ordered or sent of which nobody knows yet what became of it."""
        return bool(self._orders or self._under_way)

    def look(self) -> News | None:
        """Looks once: at what was sent, and at what is new on the chain."""
        self._hear()
        return self.watch.look()

    def job_count(self) -> int:
        """Jobs ever posted."""
        return self.contract.job_count()

    def put(self, order: Order) -> bool:
        """Takes an order for the next `flush`. False if the same is under way already."""
        data = self.encode(order)
        purpose = order.purpose or f"{order.function} 0x{sha256(data).hexdigest()[:32]}"
        if purpose in self._orders or any(purpose == known for _, items in self._under_way for known, _ in items):
            return False
        self._orders[purpose] = order, data
        return True

    def encode(self, order: Order) -> bytes:
        """The call data."""
        return self.contract.encode(order.function, *order.arguments)

    def flush(self) -> bool:
        """Sends all orders. Whether a block has taken one of them at once, so that it is worth to look again."""
        orders, self._orders = self._orders, {}
        moves = {purpose: item for purpose, item in orders.items() if not item[0].value}
        by_sent: dict[int, tuple[Sent, list[tuple[str, Order]]]] = {}

        def note(sent: Sent, purpose: str, order: Order) -> None:
            by_sent.setdefault(id(sent), (sent, []))[1].append((purpose, order))

        for purpose, (order, data) in orders.items():
            if purpose in moves:
                continue
            try:
                note(
                    self._sender.submit(self.contract.address, data, value=order.value, purpose=purpose), purpose, order
                )
            except RpcRefused as error:
                order.failed(self.contract.typed(error))
            except ChainError as error:
                order.failed(error)
        if moves:
            try:
                answers = self._batches.submit([Move(data, purpose) for purpose, (_, data) in moves.items()])
            except ChainError as error:
                for order, _ in moves.values():
                    order.failed(error)
                answers = []
            for answer in answers:
                order = moves[answer.move.purpose][0]
                if answer.error is not None:
                    order.failed(answer.error)
                elif answer.sent is not None:
                    note(answer.sent, answer.move.purpose, order)
        self._under_way += by_sent.values()
        return bool(by_sent) and self._hear()

    def _hear(self) -> bool:
        """Whether a block has taken anything since the last time."""
        if not self._under_way:
            return False
        self._sender.poll()
        mined = False
        for sent, items in list(self._under_way):
            if not sent.done and sent.receipt is None:
                continue
            self._under_way.remove((sent, items))
            for _, order in items:
                if sent.receipt is not None:
                    mined = True
                    order.sent(sent.receipt)
                else:
                    order.failed(sent.error or ContractError("Unknown", {}))
        return mined
