"""Puppets: challengers without limit of money, all of one attacker, each with a lie about another step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from pathlib import Path

from eth_typing import ChecksumAddress
from eth_utils.address import to_checksum_address
from floods.simulated import Chain
from roundlog.job import Job
from tiebreak.chain.errors import ChainError
from tiebreak.chain.game import VerificationGame
from tiebreak.chain.records import Game, Phase, Side
from tiebreak.demo.tampering import CunningEvidence, Lie, TamperedExecutor
from tiebreak.game import ClaimTimeout, Helpless, Known, Need, NeedChunk, Over, Wait, next_move
from tiebreak.roles.evidence import Evidence
from tiebreak.roles.player import call_of, posted_chunk

_RESERVE = 1800
"""Seconds of its clock that a puppet keeps for its moves, if it waits as long as it can."""


class Manner(StrEnum):
    """When a puppet moves."""

    AT_ONCE = "at once"
    IN_ROUNDS = "in rounds"
    """When every live game waits for a puppet, all of them in the same block."""
    LAST_MOMENT = "at the last moment"
    SILENT = "never"


class PuppetEvidence(Evidence):
    """The evidence of a run with one lie, of which only the interval with the lie is executed: all later checkpoints
    are made up."""

    def __init__(self, job: Job, honest_run: Path, honest_roots: list[bytes], step: int, operator: int) -> None:
        lie = Lie(step=step, operator=operator, bit=21)
        executor = TamperedExecutor(job.program, job.spec.rounding_bits, [lie])
        super().__init__(job, honest_run, honest_roots, executor=executor)
        interval = step // job.spec.interval
        states = list(honest_roots[:interval])
        steps = self.tree((interval,))
        states.append(steps.payloads[-1])  # type: ignore[union-attr]
        if states[-1] == honest_roots[interval]:
            raise ValueError(f"the lie about step {step} changes nothing")
        while len(states) < len(honest_roots):
            states.append(sha256(f"nobody computed {step} {len(states)}".encode()).digest())
        kept = self.tree((interval,))
        super().__init__(job, honest_run, states, executor=executor)
        self._roots[interval,] = kept  # type: ignore[assignment]


@dataclass(slots=True)
class Puppet:
    """One challenger. side: CHALLENGER, or TRAINER for the attacker's own claim."""

    account: ChecksumAddress
    manner: Manner
    step: int
    game: int = 0
    evidence: Evidence | None = None
    gave_up: bool = False


def puppet_account(number: int) -> ChecksumAddress:
    """An account of which nobody has the key."""
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
        """By the number of the game."""
        self.moves = 0

    def challenge(self, posted_job: int, puppets: list[Puppet]) -> None:
        """Pays all bonds; the games get numbers in the order of the blocks."""
        contract, posted = self._contract, self._contract.job(posted_job)
        before = set(contract.games_of(posted_job))
        for puppet in puppets:
            self._chain.rpc("anvil_setBalance", puppet.account, hex(10**21))
            puppet.evidence = PuppetEvidence(self._job, self._run, self._roots, puppet.step, self._lied)
            root = puppet.evidence.claim.root
            arguments = (posted_job, posted.spec_hash, posted.claim.checkpoint_root, root)
            self._send(puppet.account, "challenge", arguments, value=posted.terms.challenger_bond, gas=600_000)
        while self._chain.waiting:
            self._chain.mine()
        by_account = {puppet.account: puppet for puppet in puppets}
        for number in contract.games_of(posted_job):
            if number not in before:
                puppet = by_account[contract.game(number).challenger]
                puppet.game = number
                self.puppets[number] = puppet
        if len(self.puppets) < len(puppets):
            raise RuntimeError(f"only {len(self.puppets)} of {len(puppets)} challenges were taken")

    def act(self, live: dict[int, Game]) -> float:
        """Makes the moves of this instant in the games that are live; returns when to look again at the latest."""
        again = float("inf")
        mine = {number: game for number, game in live.items() if number in self.puppets}
        waits = {number for number, game in mine.items() if game.deadlines[Side.CHALLENGER]}
        all_wait = len(waits) == len(mine)
        for number in sorted(waits):
            puppet, game = self.puppets[number], mine[number]
            if puppet.gave_up or game.phase not in _RUNNING:
                continue
            due = game.deadlines[Side.CHALLENGER] - _RESERVE
            if puppet.manner is Manner.SILENT:
                continue
            late = self._chain.time() >= due
            if puppet.manner is Manner.LAST_MOMENT and not late:
                again = min(again, due)
            elif puppet.manner is Manner.IN_ROUNDS and not (all_wait or late):
                again = min(again, due)
            else:
                self._move(puppet, game)
        return again

    def _move(self, puppet: Puppet, game: Game) -> None:
        assert puppet.evidence is not None
        known = Known({(): puppet.evidence.claim})
        while True:
            decision = next_move(game, Side.CHALLENGER, known, int(self._chain.time()))
            if isinstance(decision, Need):
                known.trees[decision.place] = puppet.evidence.tree(decision.place)
            elif isinstance(decision, NeedChunk):
                known.chunk = posted_chunk(self._contract, puppet.game, game.search.nodes[Side.TRAINER])
            else:
                break
        if isinstance(decision, Helpless | Wait | Over | ClaimTimeout):
            puppet.gave_up = isinstance(decision, Helpless)
            return
        function, arguments = call_of(puppet.game, decision)
        try:
            self._contract.node.call(
                self._contract.address, self._contract.encode(function, *arguments), sender=puppet.account
            )
        except ChainError:
            puppet.gave_up = True  # the contract does not accept the lie
            return
        self._send(puppet.account, function, arguments)
        self.moves += 1

    def _send(
        self, account: ChecksumAddress, function: str, arguments: tuple[object, ...], *, value: int = 0, gas: int = 0
    ) -> None:
        data = self._contract.encode(function, *arguments)
        transaction = {"from": account, "to": self._contract.address, "data": "0x" + data.hex(), "value": hex(value)}
        transaction["gas"] = hex(gas or 6_000_000)
        self._chain.rpc("eth_sendTransaction", transaction)


_RUNNING = (Phase.BISECTION, Phase.OPENING, Phase.POSTING, Phase.PROVING)
