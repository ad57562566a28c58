"""The referee: decides elements that the contract cannot. These are values of elementary functions whose rounding the
contract's precision leaves open."""

from __future__ import annotations

from eth_hash.auto import keccak
from roundlog.adjudication import function_value, is_finite
from roundlog.definitions import code_name
from roundlog.descriptors import Descriptor, Family, describe, encode_descriptor
from roundlog.number_format import Format
from roundlog.program import Program

from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.contract_watch import events_since
from tiebreak.contract.enums import Finding, JobStatus, Level, Phase
from tiebreak.contract.events import ElementProven
from tiebreak.contract.structs import GameView, JobView
from tiebreak.roles.background_jobs import Lane, Priority
from tiebreak.roles.context import RoleContext
from tiebreak.roles.fetched_content import Refused
from tiebreak.roles.job_role import JobFollower, JobRole
from tiebreak.roles.notices import Progress, What


class RefereesJob(JobRole):
    """The referee of one job: answers the games that call it."""

    name = "referee"

    def __init__(self, context: RoleContext, job: int) -> None:
        super().__init__(context, job)
        self._told: dict[int, int] = {}
        self._arguments: dict[int, int] = {}

    def refusal(self, why: str) -> str:
        return f"cannot decide about job {self.job}: {why}"

    def consider(self, posted: JobView) -> Progress:
        if posted.status in (JobStatus.FINAL, JobStatus.REJECTED, JobStatus.EXPIRED, JobStatus.LAPSED):
            return self.leave(f"job {self.job} is {posted.status.name}")
        if posted.spec.referee != self.address or not posted.live_games:
            return Progress(state="watches")
        now = self.now()
        asked = self.games(lambda game: game.phase is Phase.REFEREE and now <= game.referee_deadline)
        if not asked:
            return Progress(state="watches")
        due = min(game.referee_deadline for game in asked.values())
        for game_id, game in asked.items():
            # A verdict names no hash: after a reorganisation it could reach another game with this number.
            if self.context.queue.watch.is_confirmed(game_id):
                self._rule(posted, game_id, game)
        return Progress(working=True, state=f"decides {len(asked)} games", deadline=due)

    def _rule(self, posted: JobView, game_id: int, game: GameView) -> None:
        priority = Priority(deadline=game.referee_deadline, stake=game.trainer_bond, bonded=True)
        if not self.long_work.files_are_here(posted, priority):
            return
        job = self.long_work.result(
            Lane.GAMES,
            "job",
            lambda background_job: self.long_work.read_job(posted),
            priority,
            "reading the files",
            about=posted.spec_hash,
        )
        if job is None:
            return
        operator = game.levels[Level.OPERATOR].index
        try:
            descriptor = asked_operator(job.program, operator, game.operator.descriptor_hash)
        except Refused as error:
            self.tell(What.WARNING, f"cannot decide game {game_id}: {error}", game=game_id)
            return
        if (argument := self._argument(posted, game_id, game)) is None:
            self.tell(What.WARNING, f"the node does not show what was asked in game {game_id}", game=game_id)
            return
        bits = self.long_work.result(
            Lane.GAMES,
            f"game {game_id}",
            lambda background_job: verdict(descriptor, argument, job.spec.f32_format, game.disputed.claimed),
            priority,
            f"deciding game {game_id}",
            about=game,
        )
        if bits is None:
            return
        what = f"element {game.disputed.element} of {job.program.describe(operator)}"
        if self._told.get(game_id) != bits:
            self._told[game_id] = bits
            text = f"{what} is 0x{bits:x}, and claimed was 0x{game.disputed.claimed:x}"
            self.tell(What.COMPUTED, text, game=game_id)
        call = ContractCall.of("adjudicate", game_id, bits)
        self.order(f"decide about {what}", call, game=game_id)

    def _argument(self, posted: JobView, game_id: int, game: GameView) -> int | None:
        """Return bits of the function's argument, as the contract has read them from the agreed operand; None if the
        node does not show them."""
        if game_id not in self._arguments:
            asked_at = game.referee_deadline - posted.terms.referee_allowance
            for event in events_since(self.context.contract, game_id, asked_at):
                if isinstance(event, ElementProven) and event.finding is Finding.UNDECIDED:
                    self._arguments[game_id] = event.bits
        return self._arguments.get(game_id)


class RefereeRole(JobFollower):
    """A role that answers every game that calls this account. It never finishes by itself."""

    def __init__(self, context: RoleContext) -> None:
        super().__init__(context, "referee", self._own)

    def _own(self, number: int, posted: JobView) -> JobRole | None:
        return RefereesJob(self.context, number) if posted.spec.referee == self.context.address else None


def asked_operator(program: Program, operator: int, descriptor_hash: bytes) -> Descriptor:
    """Return the descriptor of the disputed operator. Raises Refused if its hash is not the game's, or if it is no
    operator that a contract asks about."""
    descriptor = describe(program, operator)
    known = bytes(keccak(encode_descriptor(descriptor))) == descriptor_hash
    if not known or descriptor.family is not Family.FUNCTION:
        raise Refused(f"{program.describe(operator)} is not what the game is about")
    return descriptor


def verdict(descriptor: Descriptor, argument: int, f32_format: Format, claimed: int) -> int:
    """Return the bits to answer with: of the function of a descriptor at an element of its operand. An infinity or
    NaN is decided by the contract itself, so that nobody asks about one; the answer is then any bits but the claimed
    ones."""
    name = code_name(descriptor.family, descriptor.code)
    bits = function_value(name, argument, descriptor.dtype, f32_format)
    return bits if is_finite(descriptor.dtype, bits) else claimed ^ 1
