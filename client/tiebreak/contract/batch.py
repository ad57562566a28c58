"""Packs many moves into few transactions.

A batch is tried with a call before it is sent, so that what would fail now costs nothing and gets the contract's own
error. What fails only in its block undoes only itself; the newest view of the game shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.game import VerificationGame
from tiebreak.rpc.chain_errors import ChainError, ContractError, RpcRefused
from tiebreak.transactions.pending_transactions import Sent
from tiebreak.transactions.sender import Sender
from tiebreak.transactions.signer import GAS_MARGIN

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
        """Sends all moves, calls without value, that would succeed now, in as few transactions as possible, and waits
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
        """Groups within the bounds, each move with its gas limit; what fails by itself goes to `refused`."""
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
        """Gas limit within which the move succeeds. Raises ContractError if it would fail now."""
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
