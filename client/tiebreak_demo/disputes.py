"""The story `operator`: games about every kind of lie in one step, told by a trainer and by a challenger.

Parties are roles in this process. Each training is trained and audited honestly once; every game posts the job anew
and starts from copies of those runs.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from roundlog.adjudication import segments
from roundlog.descriptors import describe
from roundlog.dispute import half_of
from roundlog.program import Program, first_store
from roundlog.training import Auditor, Job, Run, Trainer
from tiebreak.contract.enums import Finding, Level, Outcome, Reason, Side
from tiebreak.contract.events import ElementProven
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.roles.transaction_queue import TransactionQueue

from tiebreak_demo.adversary.dishonest_queues import RememberingQueue
from tiebreak_demo.adversary.frauds import Fraud, FraudKind, fraudulent_challenger, fraudulent_trainer
from tiebreak_demo.adversary.places import all_frauds
from tiebreak_demo.adversary.trainings import TRAININGS, Training
from tiebreak_demo.report import Dispute, LiePlace, Report, StoryName
from tiebreak_demo.scene import Scene, gas_by_level
from tiebreak_demo.screen import Screen
from tiebreak_demo.story_player import ExpectedGame, StoryPlayer, StorySpec

LIE_AT = 4
"""The step that is lied about: the second one of the second interval."""

SIDES = (Side.TRAINER, Side.CHALLENGER)

_Computed = tuple[int, int, int] | None
"""Element, the trainer's bits of it, the contract's; None if the contract has computed no element."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A training, its honest runs and its frauds, which all of its games share. trained, audited: directories of the
    runs."""

    training: Training
    job: Job
    job_dir: Path
    trained: Path
    audited: Path
    right_root: bytes
    frauds: dict[FraudKind, Fraud]


def prepare(training: Training, directory: Path) -> Bench:
    """Train and audit honestly, and find a place for every kind of fraud."""
    job, trained, audited = training.job(), directory / "trained", directory / "audited"
    job.write(directory / "job")
    root = Trainer(job, trained).run().checkpoint_root
    Auditor(job, audited).run()
    frauds = all_frauds(Run(job, trained), LIE_AT, training)
    return Bench(training, job, directory / "job", trained, audited, root, frauds)


def _room(training: Training) -> str:
    return training.name.replace(" ", "-")


def benches(directory: Path) -> list[Path]:
    """Return the directories of the trainings: each gets a job, an honest run `trained` and an honest run `audited`."""
    return [directory / _room(training) for training in TRAININGS]


def play(scene: Scene, screen: Screen, report: Report) -> None:
    """Play all games, one after the other."""
    screen.heading("Story: one wrong number, and nothing else")
    screen.text(
        "Four small trainings, two of them in BF16, one of these with the sums of a GPU's tensor cores. Somebody lies "
        f"about one thing in step {LIE_AT}, and all that follows, follows from it: first the trainer, whom the auditor "
        "challenges, then an auditor, who challenges an honest trainer."
    )
    report.disputes_planned = sum(len(SIDES) * len(training.kinds) for training in TRAININGS)
    for training in TRAININGS:
        with screen.bars():
            screen.bar("everybody", f"training the {training.name}")
            bench = prepare(training, scene.directory / _room(training))
        for liar in SIDES:
            screen.heading(f"{training.name}: the {liar.name.lower()} lies")
            with screen.bars():
                for kind in training.kinds:
                    screen.bar("everybody", "games", len(report.disputes), report.disputes_planned)
                    report.disputes.append(play_one(scene, screen, bench, kind, liar))
                    screen.dispute(report.disputes[-1])


def play_one(scene: Scene, screen: Screen, bench: Bench, kind: FraudKind, liar: Side) -> Dispute:
    """Play one game, from the posting of the job to the last withdrawal, and hold it against what is expected."""
    fraud, program = bench.frauds[kind], bench.job.program
    node, is_store = program.nodes[fraud.operator], kind is FraudKind.STORED
    dispute = Dispute(
        name=StoryName.OPERATOR,
        title=f"{bench.training.name}: {kind}",
        training=bench.training.name,
        lie=kind.value,
        liar=liar.name.lower(),
        told=LiePlace(step=fraud.step, operator=fraud.operator, element=None if is_store else fraud.element),
        op=node.op,
        source=node.source,
        slot=program.state_names[fraud.operator - first_store(program)] if is_store else "",
    )
    # A right element cannot be proven wrong: the clock of a challenger whose proof the contract refuses runs out. A
    # wrong store or segment is shown by what the contract computes, for either side.
    by_time = liar is Side.CHALLENGER and not is_store and _told_segment(bench, fraud) is None
    reason = Reason.TIMEOUT if by_time else Reason.PROOF
    game = ExpectedGame(challenger=scene.auditor, winner=liar.other, reason=reason)
    spec = StorySpec(name=StoryName.OPERATOR, title=dispute.title, others=[scene.auditor], games=[game])
    with screen.quiet(), StoryPlayer(scene, screen, dispute, spec) as player:
        player.post(bench.job_dir)
        queue = _play(player, bench, fraud, liar)
        player.collect()
        computed = _computed(player, queue)
        _describe_end(player, dispute, program, computed)
        _judge(player, dispute, bench, fraud, computed)
        player.settle()
    return dispute


def _play(player: StoryPlayer, bench: Bench, fraud: Fraud, liar: Side) -> RememberingQueue | None:
    """Let both parties play, from copies of the honest runs, a liar from before its lie. Returns a lying challenger's
    queue."""
    scene, agreed = player.scene, fraud.step // bench.job.spec.interval
    contexts = [player.context(party) for party in (scene.trainer, scene.auditor)]
    rooms = player.run_of(scene.trainer, "run"), player.run_of(scene.auditor, "alone")
    shutil.copytree(bench.trained, rooms[Side.TRAINER])
    # The auditor that is to find a wrong decision in the log audits with it; others have audited without.
    reads_log = liar is Side.TRAINER and fraud.kind is FraudKind.ROUNDING
    if not reads_log:
        shutil.copytree(bench.audited, rooms[Side.CHALLENGER])
    roots = rooms[liar] / "roots"
    roots.write_bytes(roots.read_bytes()[: 32 * agreed])
    queue: TransactionQueue | None = None
    if liar is Side.TRAINER:
        trainer = fraudulent_trainer(contexts[0], player.job, fraud)
        log = {"verify_log": 1.0} if reads_log else {"use_log": False}
        challenger = AuditorRole(contexts[1], player.job, **log)
    else:
        trainer = TrainerRole(contexts[0], player.job)
        context = replace(contexts[1], make_queue=RememberingQueue)
        challenger = fraudulent_challenger(context, player.job, fraud)
        queue = challenger.context.queue
    player.play_roles([trainer, challenger])
    return queue if isinstance(queue, RememberingQueue) else None


def _told_segment(bench: Bench, fraud: Fraud) -> int | None:
    """Return the segment of a sum where the lie is, the middle one; None for what is not summed in segments."""
    descriptor = describe(bench.job.program, fraud.operator)
    count = len(segments(descriptor)) if descriptor.segment else 1
    return count // 2 if count > 1 else None


def _computed(player: StoryPlayer, queue: RememberingQueue | None) -> _Computed:
    """Return what the contract has computed for a proof, or for the proof that it has refused."""
    number, _ = player.game_of(player.scene.auditor)
    for event in player.scene.contract.events(game=number):
        if isinstance(event, ElementProven) and event.finding is Finding.VALUE:
            return event.element, event.claimed, event.bits
    for error in queue.refused if queue is not None else []:
        if error.name == "ElementIsRight":
            element, bits = (int(str(error.values[name])) for name in ("element", "bits"))
            return element, bits, bits
    return None


def _describe_end(player: StoryPlayer, dispute: Dispute, program: Program, computed: _Computed) -> None:
    """Write down how the game has ended."""
    number, game = player.game_of(player.scene.auditor)
    index = {level.level: level.index for level in game.levels}
    leaf, half = index[Level.OPERATOR], half_of(len(program.nodes), len(program.state_names))
    dispute.found = LiePlace(
        step=index[Level.CHECKPOINT] * player.posted.spec.training.interval + index[Level.STEP],
        operator=leaf if leaf < half else first_store(program) + leaf - half,
        element=game.disputed.element if game.disputed.known else computed and computed[0],
    )
    dispute.segment = index.get(Level.PARTIAL)
    dispute.gas_by_level = gas_by_level(player.scene.contract, number)
    dispute.winner = {Outcome.TRAINER_WON: "trainer", Outcome.CHALLENGER_WON: "challenger"}.get(game.outcome, "nobody")
    dispute.by = {Reason.PROOF: "proof", Reason.TIMEOUT: "time"}.get(game.reason, game.reason.name.lower())


def _judge(player: StoryPlayer, dispute: Dispute, bench: Bench, fraud: Fraud, computed: _Computed) -> None:
    """Compare what is known beforehand with what the chain says."""
    expect, spec, segment = player.expect, player.spec, _told_segment(bench, fraud)
    (expected,), (_, game) = spec.games, player.game_of(player.scene.auditor)
    liar = expected.winner.other
    roots = game.levels[Level.CHECKPOINT].roots
    expect("the honest party has the right root", bench.right_root, roots[liar.other])
    expect("and the other one another", True, roots[liar] != bench.right_root)
    expect("the game has ended where the lie is", dispute.told, dispute.found)
    expect("and at the segment where its sum goes wrong", segment, dispute.segment)
    if fraud.kind is FraudKind.ROUNDING and not spec.is_final:
        found = f"the log is wrong at {dispute.told}: the logged decision is not the correct rounding"
        expect("the auditor has found it in the log as well", True, found in player.said)
    player.expect_end("the honest party has won", expected)
    player.expect_status()
    claimed = fraud.claimed if liar is Side.TRAINER else fraud.right
    if segment is not None:
        expect("the trainer claims these bits of the sum", claimed, game.disputed.claimed)
    elif fraud.kind is not FraudKind.STORED:
        bits = computed and computed[1:]
        expect("the trainer claims these bits, the contract computes those", (claimed, fraud.right), bits)
