"""Puppets: challengers without limit of money, all of one attacker, each with a lie about another step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from pathlib import Path

from eth_typing import ChecksumAddress
from eth_utils.address import to_checksum_address
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.repetition import replay_interval
from roundlog.training.run import Run
from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.contract_watch import find_chunk, find_rows
from tiebreak.contract.enums import Phase, Side
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import GameView
from tiebreak.game.moves import ClaimTimeout, Helpless, Need, NeedChunk, NeedRow, Over, Wait
from tiebreak.game.strategy import Known, next_move
from tiebreak.roles.engine import DisputeTrees
from tiebreak.roles.player import call_of
from tiebreak.rpc.chain_errors import ChainError
from tiebreak_demo.adversary.engines import execution_of
from tiebreak_demo.adversary.tampering import Lie, tampered

from floods.simulated import Chain

_RESERVE = 1800
"""Seconds of its clock that a puppet keeps for its moves, if it waits as long as it can."""


class Manner(StrEnum):
    """Moment at which a puppet moves."""

    AT_ONCE = "at once"
    IN_ROUNDS = "in rounds"
    """All puppets in the same block, once every live game waits for one."""
    LAST_MOMENT = "at the last moment"
    SILENT = "never"


def puppet_trees(job: Job, honest_run: Path, honest_roots: list[bytes], step: int, operator: int) -> DisputeTrees:
    """The dispute trees of a run with one lie. Only the interval with the lie is executed: all later checkpoints
    are made up."""
    lie = Lie(step=step, operator=operator, bit=21)
    execution = execution_of(lambda job: tampered(job.program, job.spec.f32_format, [lie]))
    options = RunOptions(execution=execution)
    interval = step // job.spec.interval
    states = list(honest_roots[:interval])
    states.append(replay_interval(Run(job, honest_run, options), interval)[-1])
    if states[-1] == honest_roots[interval]:
        raise ValueError(f"the lie about step {step} changes nothing")
    while len(states) < len(honest_roots):
        states.append(sha256(f"nobody computed {step} {len(states)}".encode()).digest())
    return DisputeTrees(job, honest_run, states, options)


@dataclass(slots=True)
class Puppet:
    """An account of the attacker: a challenger, or its trainer. given_up: games in which no lie helps any more."""

    account: ChecksumAddress
    manner: Manner
    step: int
    trees: DisputeTrees | None = None
    given_up: set[int] = field(default_factory=set)


def puppet_account(number: int) -> ChecksumAddress:
    """An account without a key that anybody has."""
    return to_checksum_address(f"0x{0xF100D000000 + number:040x}")


class Attacker:
    """Moves all puppets. `gas` of its transactions is read from the chain at the end."""

    def __init__(
        self, chain: Chain, contract: VerificationGame, job: Job, honest_run: Path, honest_roots: list[bytes], lied: int
    ) -> None:
        """lied: the operator that every puppet lies about."""
        self._chain, self._contract, self._job = chain, contract, job
        self._run, self._roots, self._lied = honest_run, honest_roots, lied
        self.puppets: dict[int, Puppet] = {}
        """Puppets by the numbers of their games."""
        self.trainer: Puppet | None = None
        self.moves = 0

    def commit(self, posted_job: int, trainer: Puppet, mine: Callable[[], None]) -> None:
        """Claims a run with a lie. mine: makes a block."""
        posted = self._contract.job(posted_job)
        trainer.trees = puppet_trees(self._job, self._run, self._roots, trainer.step, self._lied)
        self.trainer = trainer
        leaves = trainer.trees.claim
        call = self._contract.commit(
            posted_job,
            spec_hash=posted.spec_hash,
            claimed=leaves.as_next_root(),
            final_state_root=leaves.payloads[-1],
            log_cid="Qm-no-log",
            model_cid="Qm-no-model",
            bond=posted.terms.trainer_bond,
        )
        self._chain.rpc("anvil_setBalance", trainer.account, hex(10**21))
        self._send(trainer.account, call, gas=1_000_000)
        mine()
        if self._contract.job(posted_job).claim.trainer != trainer.account:
            raise RuntimeError("the attacker's claim was not taken")

    def challenge(self, posted_job: int, puppets: list[Puppet], mine: Callable[[], None]) -> None:
        """Pays all bonds; the games get numbers in the order of the blocks. mine: makes a block."""
        contract, posted = self._contract, self._contract.job(posted_job)
        before = set(contract.games_of(posted_job))
        for puppet in puppets:
            self._chain.rpc("anvil_setBalance", puppet.account, hex(10**21))
            puppet.trees = puppet_trees(self._job, self._run, self._roots, puppet.step, self._lied)
            root = puppet.trees.claim.root
            call = contract.challenge(
                posted_job,
                spec_hash=posted.spec_hash,
                claimed_root=posted.claim.checkpoint_root,
                checkpoint_root=root,
                bond=posted.terms.challenger_bond,
            )
            self._send(puppet.account, call, gas=600_000)
        while self._chain.waiting:
            mine()
        by_account = {puppet.account: puppet for puppet in puppets}
        for number in contract.games_of(posted_job):
            if number not in before:
                self.puppets[number] = by_account[contract.game(number).challenger]
        if len(self.puppets) < len(puppets):
            raise RuntimeError(f"only {len(self.puppets)} of {len(puppets)} challenges were taken")

    def act(self, live: dict[int, GameView]) -> float:
        """Makes the moves of this instant in the games that are live; returns when to look again at the latest."""
        again = float("inf")
        mine = {number: game for number, game in live.items() if number in self.puppets}
        waits = {number for number, game in mine.items() if game.deadlines[Side.CHALLENGER]}
        all_wait = len(waits) == len(mine)
        for number, game in live.items():
            for side in Side:
                puppet = self.puppets.get(number) if side is Side.CHALLENGER else self.trainer
                if puppet is None or not game.deadlines[side] or game.phase not in _RUNNING:
                    continue
                if puppet.manner is Manner.SILENT or number in puppet.given_up:
                    continue
                due = game.deadlines[side] - _RESERVE
                early = self._chain.time() < due
                if early and (
                    puppet.manner is Manner.LAST_MOMENT or (puppet.manner is Manner.IN_ROUNDS and not all_wait)
                ):
                    again = min(again, due)
                else:
                    self._move(puppet, side, number, game)
        return again

    def _move(self, puppet: Puppet, side: Side, number: int, game: GameView) -> None:
        assert puppet.trees is not None
        known = Known({(): puppet.trees.claim})
        while isinstance(decision := next_move(game, side, known, int(self._chain.time())), Need | NeedChunk | NeedRow):
            if isinstance(decision, Need):
                known.trees[decision.place] = puppet.trees.tree(decision.place)
            elif isinstance(decision, NeedRow):
                known.rows = find_rows(self._contract, number, game)
            else:
                known.chunk = find_chunk(self._contract, number, game)
        if isinstance(decision, Helpless | Wait | Over | ClaimTimeout):
            if isinstance(decision, Helpless):
                puppet.given_up.add(number)
            return
        call = call_of(self._contract, number, decision)
        if game.phase is Phase.PROVING:
            try:
                data = self._contract.encode(call)
                self._contract.node.call(self._contract.address, data, sender=puppet.account)
            except ChainError:
                puppet.given_up.add(number)  # the contract does not accept the lie
                return
        self._send(puppet.account, call)
        self.moves += 1

    def _send(self, account: ChecksumAddress, call: ContractCall, *, gas: int = 6_000_000) -> None:
        data = "0x" + self._contract.encode(call).hex()
        transaction = {"from": account, "to": self._contract.address, "data": data, "value": hex(call.value)}
        transaction["gas"] = hex(gas)
        self._chain.rpc("eth_sendTransaction", transaction)


_RUNNING = (Phase.BISECTION, Phase.OPENING, Phase.POSTING, Phase.PROVING)
