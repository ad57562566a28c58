"""Audits by many workers: the verdict is the one of a whole audit, whatever workers and trainers do."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from roundlog.commitments import MerkleTree
from roundlog.segment_audits.audit import audit_by_segments
from roundlog.segment_audits.plan import Plan, Reports, Sharing, draw_sample, fewest_parts, miss_probability
from roundlog.segment_audits.segment import Listing, MakeWorker, Segment, SegmentOrder, WorkerAnswer, audit_segment
from roundlog.segment_audits.workers import process_workers
from roundlog.spec import POLICY_THRESHOLD
from roundlog.training.repetition import replay_interval
from roundlog.training.run import Run, RunError

from tests.engine.segment_audits.audit_workers import Stand, honest, named, source_of
from tests.engine.segment_audits.published_runs import INTERVALS, Liar, Trained, require_a_game_can_be_won


@pytest.mark.parametrize(("every", "workers"), [(1, 3), (3, 1), (INTERVALS, 3)])
def test_an_honest_run_is_right(trained: Trained, tmp_path: Path, every: int, workers: int) -> None:
    found = trained.audit(tmp_path / "audit", trained.listing(every), workers=workers)
    assert found.is_whole and found.wrong is None and found.state_roots == trained.roots
    assert found.units == found.drawn == -(-INTERVALS // every)
    assert (found.unusable, found.distrusted, found.lost) == ([], [], 0)
    assert Run(trained.job, tmp_path / "audit").recorded_roots() == trained.roots
    assert not (tmp_path / "audit" / "scratch").exists()


@pytest.mark.parametrize(("consistent", "every"), [(True, 1), (False, 3)])
def test_a_wrong_interval_is_found_and_can_be_challenged(
    trained: Trained, tmp_path: Path, consistent: bool, every: int
) -> None:
    liar = Liar(trained, tmp_path / "liar")
    liar.lie(4, consistent=consistent)
    found = trained.audit(tmp_path / "audit", liar.listing(every))
    require_a_game_can_be_won(trained.job, found, liar.roots, tmp_path / "audit")
    assert found.wrong is not None and found.wrong.interval in ([4] if consistent else [4, 5])


def test_after_a_lie_the_search_ends_at_once(trained: Trained, tmp_path: Path) -> None:
    liar = Liar(trained, tmp_path / "liar")
    liar.lie(0, consistent=True)
    orders: list[SegmentOrder] = []

    def counted(order: SegmentOrder) -> WorkerAnswer:
        orders.append(order)
        return audit_segment(order)

    stands: list[Stand] = []

    def make(number: int) -> Stand:
        stands.append(Stand(named(f"counted {number}", counted)))
        return stands[-1]

    found = trained.audit(tmp_path / "audit", liar.listing(), make)
    assert found.wrong is not None and found.wrong.interval == 0
    assert len(orders) <= 2, "the first two were handed out together"
    assert all(stand.is_over for stand in stands)


def test_states_that_cannot_be_used_cost_one_more_run_at_most(trained: Trained, tmp_path: Path) -> None:
    """Neither a pipe, nor an endless or a huge file makes anybody wait."""
    executed: list[int] = []
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    hostile = [str(tmp_path / name) for name in ("pipe", "endless", "huge", "nowhere")] + [str(tmp_path), "\x7f"]

    def counted(order: SegmentOrder) -> WorkerAnswer:
        answer = audit_segment(order)
        executed.append(len(answer.roots))
        return answer

    for bad in (range(1, INTERVALS), range(1, INTERVALS, 2), [4]):
        executed.clear()
        states = trained.listing().states | {done: hostile[done % len(hostile)] for done in bad}
        listing = Listing(roots=tuple(trained.roots), states=states)
        told: list[str] = []
        found = trained.audit(
            tmp_path / f"audit {len(bad)}",
            listing,
            lambda n: Stand(named(f"{n}", counted)),
            reports=Reports(event=told.append),
        )
        assert found.is_whole and len(found.unusable) == len(bad) == len(told)
        assert sum(executed) <= 2 * INTERVALS


def test_a_lost_segment_whose_state_cannot_be_used_any_more_is_reached_from_another_state() -> None:
    """A second worker has found the state unusable while the first one still had the segment."""
    plan = Plan(Listing(roots=(b"1", b"2", b"3"), states={1: "one", 2: "two"}), b"0")
    plan.begin()
    first, second, third = plan.next(), plan.next(), plan.next()
    assert (first, second, third) == (Segment(0, 1), Segment(1, 2), Segment(2, 3))
    plan.hand_out_again(second)
    plan.drop_state(1)
    plan.answered(second, 0)
    plan.lost(second)
    assert plan.next() == Segment(0, 2)


def test_a_share_is_drawn_and_what_it_misses_is_told(trained: Trained, tmp_path: Path) -> None:
    found = trained.audit(tmp_path / "audit", share=0.25)
    assert len(found.right) == found.drawn == 2 and not found.is_whole
    assert found.unnoticed(1) == pytest.approx(6 / 8) and found.unnoticed(7) == 0.0
    drawn = [draw_sample(trained.listing(), 0.25) for _ in range(400)]
    assert {len(found) for found in drawn} == {2} and set().union(*drawn) == set(range(INTERVALS))
    missed = sum(3 not in found for found in drawn) / len(drawn)
    assert 0.6 < missed < 0.9, "a quarter is seven standard deviations from both"


def test_what_is_stated_about_a_share_is_what_happens() -> None:
    """Of parts of any sizes, the probability to draw none of those that wrong intervals lie in, counted."""
    rng = random.Random(1)
    for _ in range(30):
        sizes = [rng.randint(1, 6) for _ in range(rng.randint(1, 6))]
        edges = [sum(sizes[:count]) for count in range(1, len(sizes))]
        listing = Listing(roots=(bytes(32),) * sum(sizes), states=dict.fromkeys(edges, "somewhere"))
        count, wrong = rng.randint(1, len(sizes)), rng.randint(1, sum(sizes))
        parts = [set(range(sum(sizes[:i]), sum(sizes[: i + 1]))) for i in range(len(sizes))]
        drawn = draw_sample(listing, count / len(sizes))
        assert sum(part <= drawn for part in parts) == count == sum(bool(part & drawn) for part in parts)
        holding = [some for some in subsets(range(len(sizes))) if sum(sizes[i] for i in some) >= wrong]
        samples = [set(some) for some in subsets(range(len(sizes))) if len(some) == count]
        worst = max(sum(not some & set(held) for some in samples) / len(samples) for held in holding)
        assert miss_probability(len(sizes), count, fewest_parts(sizes, wrong)) == pytest.approx(worst)


def subsets(items: range) -> list[tuple[int, ...]]:
    return [some for size in range(len(items) + 1) for some in combinations(items, size)]


def lie_about(*intervals: int) -> MakeWorker:
    """The first worker answers wrong about these intervals."""

    def forged(order: SegmentOrder) -> WorkerAnswer:
        answer = audit_segment(order)
        if order.segment.first in intervals and answer.roots:
            return replace(answer, roots=(*answer.roots[:-1], b"\x55" * 32))
        return answer

    return lambda number: Stand(named(f"liar {number}", forged)) if number == 0 else honest(number)


def test_a_worker_that_accuses_is_not_believed_unheard(trained: Trained, tmp_path: Path) -> None:
    found = trained.audit(tmp_path / "audit", make=lie_about(*range(INTERVALS)))
    assert found.is_whole and found.wrong is None
    assert len(found.distrusted) == 1 and "worker 1 (liar 0)" in found.distrusted[0]


def hush(trained: Trained, claimed: list[bytes]) -> MakeWorker:
    """The first worker says that everything is as claimed, without executing anything."""

    def lazy(order: SegmentOrder) -> WorkerAnswer:
        return WorkerAnswer(worker="", roots=tuple(claimed[order.segment.first : order.segment.stop]))

    return lambda number: Stand(named("lazy", lazy)) if number == 0 else honest(number)


def test_a_worker_that_hushes_up_is_found_by_repetition(trained: Trained, tmp_path: Path) -> None:
    liar = Liar(trained, tmp_path / "liar")
    liar.lie(4, consistent=True)
    make = hush(trained, liar.roots)
    # It answers at once and takes what it can get; the wrong interval may be an honest worker's by chance.
    found = trained.audit(tmp_path / "audit", liar.listing(), make, repeat_share=1.0)
    require_a_game_can_be_won(trained.job, found, liar.roots, tmp_path / "audit")


FORMS = {
    "too few roots": lambda answer: replace(answer, roots=answer.roots[:-1]),
    "too many roots": lambda answer: replace(answer, roots=(*answer.roots, bytes(32))),
    "a stop and a root": lambda answer: replace(answer, stopped="why"),
    "the initial state cannot be had": lambda answer: replace(answer, roots=(), unusable="why"),
}


@pytest.mark.slow_but("too few roots")
@pytest.mark.parametrize("form", FORMS)
def test_an_answer_of_another_form_is_named_and_not_used(trained: Trained, tmp_path: Path, form: str) -> None:
    def bent(order: SegmentOrder) -> WorkerAnswer:
        return FORMS[form](audit_segment(order))

    make: MakeWorker = lambda number: Stand(bent) if number == 0 else honest(number)  # noqa: E731
    found = trained.audit(tmp_path / "audit", make=make)
    assert found.is_whole and len(found.distrusted) == 1 and "worker 1" in found.distrusted[0]


class Stopped(Exception):
    pass


def test_a_killed_audit_carries_on(trained: Trained, tmp_path: Path) -> None:
    def stops_at(count: int) -> Reports:
        def progress(done: int, total: int) -> None:
            if done >= count:
                raise Stopped

        return Reports(progress=progress)

    with pytest.raises(Stopped):
        trained.audit(tmp_path / "audit", reports=stops_at(4))
    with (tmp_path / "audit" / "facts.jsonl").open("ab") as file:
        file.write(b'{"interval": 7, "start"')
    orders: list[SegmentOrder] = []

    def counted(order: SegmentOrder) -> WorkerAnswer:
        orders.append(order)
        return audit_segment(order)

    found = trained.audit(tmp_path / "audit", make=lambda n: Stand(named(f"{n}", counted)))
    assert found.is_whole and len(orders) == INTERVALS - 4
    orders.clear()
    again = trained.audit(tmp_path / "audit", make=lambda n: Stand(named(f"{n}", counted)))
    assert again.is_whole and orders == []


def test_a_damaged_record_is_no_evidence(trained: Trained, tmp_path: Path) -> None:
    trained.audit(tmp_path / "audit")
    path = tmp_path / "audit" / "facts.jsonl"
    path.write_bytes(path.read_bytes().replace(trained.roots[3].hex().encode(), b"55" * 32))
    liar = list(trained.roots)
    liar[3] = b"\x55" * 32
    found = trained.audit(tmp_path / "audit", Listing(roots=tuple(liar), states=trained.listing().states))
    assert found.wrong is not None and found.wrong.interval == 3 and found.wrong.root == trained.roots[3]


def test_a_run_that_stops_is_wrong_where_it_stops(trained: Trained, tmp_path: Path) -> None:
    liar = Liar(trained, tmp_path / "liar")
    liar.lie(2, consistent=False, by=float("inf"))
    listing = liar.listing()
    states = {done: path for done, path in listing.states.items() if done == 3}
    found = trained.audit(tmp_path / "audit", replace(listing, states=states), workers=1)
    # The first segment finds interval 2; a worker that begins with the second one finds that interval 3 stops.
    assert found.wrong is not None and found.wrong.interval == 2
    only = trained.audit(tmp_path / "second", replace(listing, states=states), make=first_hangs(), workers=2)
    assert only.wrong is not None and only.wrong.interval == 3 and only.wrong.stopped is not None
    require_a_game_can_be_won(trained.job, only, liar.roots, tmp_path / "second")


def first_hangs() -> MakeWorker:
    return lambda number: Stand(named(f"{number}"), hangs=lambda order: order.segment.first == 0)


def test_jobs_numbers_and_directories_that_make_no_sense_are_refused(trained: Trained, tmp_path: Path) -> None:
    by_log = replace(trained.job, spec=replace(trained.job.spec, rounding_policy=POLICY_THRESHOLD))
    sharing = Sharing(make=honest, workers=1)
    with pytest.raises(RunError, match="the log decides"):
        audit_by_segments(by_log, Listing(roots=()), source_of(tmp_path), tmp_path / "a", sharing)
    for wrong in ({"workers": 0}, {"share": 0.0}, {"share": 1.5}, {"repeat_share": -0.1}):
        with pytest.raises(ValueError, match="needs 1 or more workers, and shares"):
            trained.audit(tmp_path / "b", **wrong)
    with pytest.raises(ValueError, match="7 state roots are published of a run of 8"):
        trained.audit(tmp_path / "b", Listing(roots=tuple(trained.roots[:-1])))
    with pytest.raises(ValueError, match="9 state roots"):
        trained.audit(tmp_path / "b", Listing(roots=(*trained.roots, bytes(32))))
    with pytest.raises(RunError, match="another role"):
        trained.audit(trained.run)


@pytest.mark.slow
def test_a_former_challenge_is_found_again(trained: Trained, tmp_path: Path) -> None:
    """After the loss of its directory a challenger looks for the interval that it has challenged with."""
    liar = Liar(trained, tmp_path / "liar")
    for interval in (1, 3, 5):
        liar.lie(interval, consistent=True)
    roots, run = list(liar.roots), Run(trained.job, liar.run)
    with run.locked_record() as record:
        record(roots)
    for wrong in (5, 1, 3):
        root = replay_interval(run, wrong)[-1]
        claimed = [*roots[:wrong], root, *roots[wrong + 1 :]]
        challenged = MerkleTree(claimed).root
        found = trained.audit(tmp_path / f"audit {wrong}", liar.listing(), challenged=challenged)
        assert found.wrong is not None and found.wrong.interval == wrong and found.checkpoint_root == challenged
    other = trained.audit(tmp_path / "other", liar.listing(), challenged=bytes(32))
    assert other.wrong is not None, "no interval explains that challenge; one is wrong all the same"


@pytest.mark.slow
def test_processes_of_this_machine_are_workers(trained: Trained, tmp_path: Path) -> None:
    liar = Liar(trained, tmp_path / "liar")
    liar.lie(4, consistent=True)
    found = trained.audit(tmp_path / "audit", liar.listing(), process_workers(threads=1), 2)
    assert found.wrong is not None and found.wrong.interval == 4 and found.distrusted == []
