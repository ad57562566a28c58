"""The referee: answers what the contract leaves open, an element of an elementary function whose rounding its precision
does not decide, or of a row of data that does not fit a transaction."""

from __future__ import annotations

from eth_hash.auto import keccak
from roundlog.adjudication import Descriptor, Family, Function, describe, encode_descriptor
from roundlog.adjudication.adjudicate import Step
from roundlog.adjudication.binary32 import is_finite
from roundlog.adjudication.exactly import data_value, function_value
from roundlog.program import Program

from tiebreak.chain.events import ElementProven
from tiebreak.chain.records import Finding, Game, Job, Level, Phase
from tiebreak.roles.contents import Refused, fetch_job
from tiebreak.roles.notices import Progress, What
from tiebreak.roles.role import Role
from tiebreak.roles.station import Station


class RefereeRole(Role):
    """Answers every game that calls this account. Never finishes by itself."""

    name = "referee"

    def __init__(self, station: Station) -> None:
        super().__init__(station)
        self._seen = 0
        self._live: set[int] = set()
        self._jobs: dict[int, Job] = {}

    def step(self) -> Progress:
        contract = self.station.contract
        count = contract.game_count()
        self._live |= set(range(self._seen + 1, count + 1))
        self._seen = count
        acted = False
        for game_id in sorted(self._live):
            game = contract.game(game_id)
            if game.phase is Phase.OVER or not self._is_mine(game.job):
                self._live.discard(game_id)
            elif game.phase is Phase.REFEREE and self.station.now() <= game.referee_deadline:
                acted |= self._rule(game_id, game)
        return Progress(acted=acted, state=f"watching {len(self._live)} games")

    def _is_mine(self, job_id: int) -> bool:
        if job_id not in self._jobs:
            self._jobs[job_id] = self.station.contract.job(job_id)
        return self._jobs[job_id].spec.referee == self.station.address

    def _rule(self, game_id: int, game: Game) -> bool:
        posted, operator = self._jobs[game.job], game.levels[Level.OPERATOR].index
        try:
            job = fetch_job(self.station, posted, self.station.room(game.job, posted))
            descriptor = asked_operator(job.program, operator, game.operator.descriptor_hash)
        except Refused as error:
            self.tell(What.WARNING, f"cannot decide game {game_id}: {error}", job=game.job, game=game_id)
            self._live.discard(game_id)
            return False
        if descriptor.family == Family.DATA:
            step = game.levels[Level.CHECKPOINT].index * job.spec.interval + game.levels[Level.STEP].index
            bits = data_value(descriptor, game.disputed.element, Step.of(job.spec, step), list(job.dataset.values()))
        elif (argument := self._argument(game_id)) is not None:
            bits = verdict(Function(descriptor.code), argument, job.spec.rounding_bits, game.disputed.claimed)
        else:
            self.tell(What.WARNING, "the node does not show what was asked", job=game.job, game=game_id)
            return False
        what = f"element {game.disputed.element} of {job.program.describe(operator)}"
        text = f"{what} is 0x{bits:x}, and claimed was 0x{game.disputed.claimed:x}"
        self.tell(What.COMPUTED, text, job=game.job, game=game_id)
        return self.send(
            f"decide about {what}",
            lambda: self.station.contract.adjudicate(game_id, bits),
            job=game.job,
            game=game_id,
        )

    def _argument(self, game_id: int) -> int | None:
        """The function's argument, as the contract has read it from the agreed operand."""
        contract = self.station.contract
        for event in contract.events(game=game_id, to_block=contract.node.head().number):
            if isinstance(event, ElementProven) and event.finding is Finding.UNDECIDED:
                return event.bits
        return None


def asked_operator(program: Program, operator: int, descriptor_hash: bytes) -> Descriptor:
    """The descriptor of the disputed operator. Raises Refused if it is not the one that the game has seen, or none that
    a contract could ask about."""
    descriptor = describe(program, operator)
    known = bytes(keccak(encode_descriptor(descriptor))) == descriptor_hash
    if not known or descriptor.family not in (Family.FUNCTION, Family.DATA):
        raise Refused(f"{program.describe(operator)} is not what the game is about")
    return descriptor


def verdict(code: Function, argument: int, rounding_bits: int, claimed: int) -> int:
    """The bits to answer with. Where a run has no value nobody is right: then any but those that are claimed."""
    bits = function_value(code, argument, rounding_bits)
    return bits if is_finite(bits) else claimed ^ 1
