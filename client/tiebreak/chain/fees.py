"""Fees of a transaction (EIP-1559): of a new one, and of one that replaces a stuck one."""

from __future__ import annotations

from dataclasses import replace

from tiebreak.chain.blocks import Block, Fees
from tiebreak.chain.node import ChainNode

MAX_FEE = 1_000 * 10**9
"""Wei per gas that are offered at most by default: ten times what a busy day costs."""

_KEPT_TIP = 100  # blocks for which a priority fee is taken as known


class Offers:
    """Fees that one account offers. `cap`: wei per gas that are offered at most."""

    def __init__(self, node: ChainNode, cap: int) -> None:
        self._node = node
        self._cap = cap
        self._tip: tuple[int, int] | None = None

    def first(self, head: Block) -> Fees:
        """Fees of a new transaction while `head` is the newest block; they suffice until the base fee has doubled."""
        wanted = self._wanted(head)
        return replace(wanted, max_fee=min(wanted.max_fee, self._cap), priority_fee=min(wanted.priority_fee, self._cap))

    def raised(self, fees: Fees, head: Block | None) -> Fees | None:
        """Fees of a transaction that replaces one with `fees`; None if they would exceed the cap.

        Both are at least an eighth higher (nodes ask for a tenth), and no lower than those of a new transaction."""
        wanted = self._wanted(head) if head is not None else Fees(0, 0)
        most = max(wanted.max_fee, fees.max_fee * 9 // 8 + 1)
        tip = max(wanted.priority_fee, fees.priority_fee * 9 // 8 + 1)
        if most > self._cap:
            most = self._cap
            if most < fees.max_fee * 9 // 8 + 1:
                return None
        return None if tip > most else Fees(most, tip)

    def _wanted(self, head: Block) -> Fees:
        if self._tip is None or not 0 <= head.number - self._tip[0] < _KEPT_TIP:
            self._tip = head.number, self._node.priority_fee()
        tip = self._tip[1]
        return Fees(2 * head.base_fee + tip, tip)
