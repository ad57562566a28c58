"""The story `operator`: games about every kind of lie in one step, told by a trainer and by a challenger.

Parties are roles in this process. Each training is trained and audited honestly once; every game posts the job anew
and starts from copies of those runs.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

from roundlog import training as engine
from roundlog.adjudication import segments
from roundlog.descriptors import describe
from roundlog.dispute import half_of
from roundlog.program import first_store
from roundlog.training import Auditor, Run, Trainer
from tiebreak.contract.contract_calls import Shares
from tiebreak.contract.enums import Finding, JobStatus, Level, Outcome, Phase, Reason, Side
from tiebreak.contract.events import ElementProven
from tiebreak.contract.structs import GameView, JobView
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.trainer_role import TrainerRole

from tiebreak_demo.adversary.dishonest_queues import RememberingQueue
from tiebreak_demo.adversary.frauds import Fraud, FraudKind, fraudulent_challenger, fraudulent_trainer
from tiebreak_demo.adversary.places import all_frauds
from tiebreak_demo.adversary.trainings import TRAININGS, Training
from tiebreak_demo.report import Dispute, LiePlace, Report, StoryName
from tiebreak_demo.scene import PACE, Party, Scene, gas_by_level
from tiebreak_demo.screen import QuietScreen, Screen
from tiebreak_demo.stage import TERMS, Stage

LIE_AT = 4
"""The step that is lied about: the second one of the second interval."""

SIDES = (Side.TRAINER, Side.CHALLENGER)

_WINNERS = {Outcome.TRAINER_WON: "trainer", Outcome.CHALLENGER_WON: "challenger"}
_MEANS = {Reason.PROOF: "proof", Reason.TIMEOUT: "time"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """A training, its honest runs and its frauds, which all of its games share."""

    training: Training
    job: engine.Job
    job_dir: Path
    trained: Path
    """The honest trainer's run."""
    audited: Path
    """The honest auditor's run."""
    right_root: bytes
    frauds: dict[FraudKind, Fraud]


def prepare(training: Training, directory: Path) -> Bench:
    """Trains and audits honestly, and finds a place for every kind of fraud."""
    job = training.job()
    job.write(directory / "job")
    trained, audited = directory / "trained", directory / "audited"
    root = Trainer(job, trained).run().checkpoint_root
    Auditor(job, audited).run()
    frauds = all_frauds(Run(job, trained), LIE_AT, training)
    return Bench(
        training=training,
        job=job,
        job_dir=directory / "job",
        trained=trained,
        audited=audited,
        right_root=root,
        frauds=frauds,
    )


def _room(training: Training) -> str:
    return training.name.replace(" ", "-")


def benches(directory: Path) -> list[Path]:
    """Directories of the trainings: each gets a job, an honest run `trained` and an honest run `audited`."""
    return [directory / _room(training) for training in TRAININGS]


def play(scene: Scene, screen: Screen, report: Report) -> None:
    """Plays all games, one after the other."""
    screen.heading("Story: one wrong number, and nothing else")
    screen.text(
        "Four small trainings, two of them in BF16, one of these with the sums of a GPU's tensor cores. Somebody lies "
        f"about one thing in step {LIE_AT}, and all that follows, follows from it: first the trainer, whom the auditor "
        "challenges, then an auditor, who challenges an honest trainer."
    )
    report.disputes_planned = sum(len(SIDES) * len(training.kinds) for training in TRAININGS)
    for training in TRAININGS:
        with screen.bars():
            screen.waiting("everybody", f"training the {training.name}")
            bench = prepare(training, scene.directory / _room(training))
        for liar in SIDES:
            screen.heading(f"{training.name}: the {liar.name.lower()} lies")
            with screen.bars():
                for kind in training.kinds:
                    done = len(report.disputes)
                    screen.bar("everybody", "games", done, report.disputes_planned)
                    dispute = play_one(scene, screen, bench, kind, liar)
                    report.disputes.append(dispute)
                    screen.dispute(dispute)


def play_one(scene: Scene, screen: Screen, bench: Bench, kind: FraudKind, liar: Side) -> Dispute:
    """Plays one game, from the posting of the job to the last withdrawal, and holds it against what is expected."""
    fraud = bench.frauds[kind]
    dispute = _announced(bench, fraud, liar)
    parties = [scene.customer, scene.trainer, scene.auditor, scene.referee]
    with Stage(scene, QuietScreen(screen), dispute, parties) as stage:
        stage.post(bench.job_dir)
        game = _Played(stage, bench, fraud, liar)
        game.play()
        stage.collect()
        game.judge(dispute)
    return dispute


def _announced(bench: Bench, fraud: Fraud, liar: Side) -> Dispute:
    program = bench.job.program
    node, slot = program.nodes[fraud.operator], fraud.operator - first_store(program)
    is_store = fraud.kind is FraudKind.STORED
    return Dispute(
        name=StoryName.OPERATOR,
        title=f"{bench.training.name}: {fraud.kind}",
        training=bench.training.name,
        lie=fraud.kind.value,
        liar=liar.name.lower(),
        told=LiePlace(step=fraud.step, operator=fraud.operator, element=None if is_store else fraud.element),
        op=node.op,
        source=node.source,
        slot=program.state_names[slot] if is_store else "",
    )


class _Played:
    """A game of an honest party against one that lies."""

    def __init__(self, stage: Stage, bench: Bench, fraud: Fraud, liar: Side) -> None:
        self._stage, self._bench, self._fraud, self._liar = stage, bench, fraud, liar
        self._scene = stage.scene
        self._remembering: RememberingQueue | None = None

    def play(self) -> None:
        """Lets both parties move until neither has anything left to do; time passes where nothing else helps."""
        working: list[JobRole] = [self._trainer(), self._challenger()]
        idle = 0
        while working:
            progress = {role: role.step() for role in working}
            working = [role for role in working if not progress[role].finished]
            if self._scene.pace > PACE:
                time.sleep(self._scene.pace)  # somebody watches
            # Twice: a party that only hears that a block has its move has changed what the one before it sees.
            idle = 0 if any(seen.acted or seen.working for seen in progress.values()) else idle + 1
            if working and idle == 2:
                idle = 0
                self._scene.pass_time(self._next_deadline())

    def _next_deadline(self) -> int:
        _, game = self._game()
        return self._job().claim.challenge_deadline if game.phase is Phase.OVER else max(game.deadlines)

    def _job(self) -> JobView:
        return self._scene.contract.job(self._stage.job)

    def _game(self) -> tuple[int, GameView]:
        found = self._stage.game_of(self._scene.auditor)
        assert found is not None, "the auditor has not challenged"
        return found

    # The parties.

    def _trainer(self) -> TrainerRole:
        context = self._stage.context(self._scene.trainer)
        room = self._stage.run_of(self._scene.trainer, "run")
        if self._liar is Side.TRAINER:
            self._lay_out(self._bench.trained, room, intervals=self._agreed)
            return fraudulent_trainer(context, self._stage.job, self._fraud)
        self._lay_out(self._bench.trained, room)
        return TrainerRole(context, self._stage.job)

    def _challenger(self) -> AuditorRole:
        context = self._stage.context(self._scene.auditor)
        room = self._stage.run_of(self._scene.auditor, "alone")
        if self._liar is Side.CHALLENGER:
            self._lay_out(self._bench.audited, room, intervals=self._agreed)
            liar = fraudulent_challenger(replace(context, make_queue=RememberingQueue), self._stage.job, self._fraud)
            queue = liar.context.queue
            assert isinstance(queue, RememberingQueue)
            self._remembering = queue
            return liar
        if self._fraud.kind is FraudKind.ROUNDING:
            # An auditor that follows the log without verifying it comes to the trainer's root.
            return AuditorRole(context, self._stage.job, verify_log=1.0)
        self._lay_out(self._bench.audited, room)
        return AuditorRole(context, self._stage.job, use_log=False)

    @property
    def _agreed(self) -> int:
        """Intervals before the lie."""
        return self._fraud.step // self._bench.job.spec.interval

    @staticmethod
    def _lay_out(run: Path, room: Path, *, intervals: int | None = None) -> None:
        """A copy of a run, or of its first intervals: from there its party carries on."""
        shutil.copytree(run, room)
        if intervals is not None:
            roots = room / "roots"
            roots.write_bytes(roots.read_bytes()[: 32 * intervals])

    # Expected results.

    def judge(self, dispute: Dispute) -> None:
        """Compares what is known beforehand with what the chain says."""
        self._tell(dispute)
        expect, bench, (_, game), job = self._stage.expect, self._bench, self._game(), self._job()
        honest = self._liar is not Side.TRAINER
        roots = game.levels[Level.CHECKPOINT].roots
        expect("the honest party has the right root", bench.right_root, roots[self._liar.other])
        expect("and the other one another", True, roots[self._liar] != bench.right_root)
        expect("the game has ended where the lie is", dispute.told, dispute.found)
        expect("and at the segment where its sum goes wrong", self._told_segment(), dispute.segment)
        outcome = Outcome.TRAINER_WON if honest else Outcome.CHALLENGER_WON
        reason = Reason.TIMEOUT if honest and self._cannot_be_proven else Reason.PROOF
        if self._fraud.kind is FraudKind.ROUNDING and not honest:
            found = f"the log is wrong at {dispute.told}: the logged decision is not the correct rounding"
            expect("the auditor has found it in the log as well", True, found in self._stage.said)
        expect("the honest party has won", (outcome.name, reason.name), (game.outcome.name, game.reason.name))
        status = JobStatus.FINAL if honest else JobStatus.REJECTED
        expect(f"the claim is {status.name.lower()}", status.name, job.status.name)
        self._expect_numbers(game)
        self._stage.settle(self._money(honest))

    @property
    def _cannot_be_proven(self) -> bool:
        """True if the contract refuses the challenger's proof, whose clock then runs out: a right element cannot be
        proven wrong, while a wrong store or segment is shown by what the contract computes, for either side."""
        return self._fraud.kind is not FraudKind.STORED and self._told_segment() is None

    def _told_segment(self) -> int | None:
        descriptor = describe(self._bench.job.program, self._fraud.operator)
        count = len(segments(descriptor)) if descriptor.segment else 1
        return count // 2 if count > 1 else None

    def _expect_numbers(self, game: GameView) -> None:
        """Compares the trainer's bits of the disputed element, and the contract's, with the known ones."""
        fraud = self._fraud
        claimed = fraud.claimed if self._liar is Side.TRAINER else fraud.right
        if self._told_segment() is not None:
            self._stage.expect("the trainer claims these bits of the sum", claimed, game.disputed.claimed)
        elif fraud.kind is not FraudKind.STORED:
            found = self._computed()
            assert found is not None
            self._stage.expect(
                "the trainer claims these bits, the contract computes those", (claimed, fraud.right), found[1:]
            )

    def _computed(self) -> tuple[int, int, int] | None:
        """(element, the trainer's bits, the contract's bits): of a proof, or of the proof that it has refused."""
        for event in self._scene.contract.events(game=self._game()[0]):
            if isinstance(event, ElementProven) and event.finding is Finding.VALUE:
                return event.element, event.claimed, event.bits
        for error in self._remembering.refused if self._remembering is not None else []:
            if error.name == "ElementIsRight":
                element, bits = (int(str(error.values[name])) for name in ("element", "bits"))
                return element, bits, bits
        return None

    def _tell(self, dispute: Dispute) -> None:
        """Writes down how the game has ended."""
        (number, game), spec, program = self._game(), self._bench.job.spec, self._bench.job.program
        index = {level.level: level.index for level in game.levels}
        leaf, half = index[Level.OPERATOR], half_of(len(program.nodes), len(program.state_names))
        computed = self._computed()
        dispute.found = LiePlace(
            step=index[Level.CHECKPOINT] * spec.interval + index[Level.STEP],
            operator=leaf if leaf < half else first_store(program) + leaf - half,
            element=game.disputed.element if game.disputed.known else computed and computed[0],
        )
        dispute.segment = index.get(Level.PARTIAL)
        dispute.gas_by_level = gas_by_level(self._scene.contract, number)
        dispute.winner = _WINNERS.get(game.outcome, "nobody")
        dispute.by = _MEANS.get(game.reason, game.reason.name.lower())

    def _money(self, honest: bool) -> dict[Party, int]:
        scene, spent = self._scene, self._game()[1].spent
        if honest:
            lost = Shares.of(TERMS.challenger_bond, spent[Side.TRAINER])
            return {
                scene.trainer: TERMS.reward + lost.winners,
                scene.auditor: -TERMS.challenger_bond,
                scene.customer: lost.quarter - TERMS.reward,
            }
        lost = Shares.of(TERMS.trainer_bond, spent[Side.CHALLENGER])
        return {
            scene.trainer: -TERMS.trainer_bond,
            scene.auditor: lost.winners,
            scene.customer: lost.quarter,
        }
