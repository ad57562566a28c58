"""Audits that look for the interval of a former challenge, whose directory is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from roundlog.commitments import MerkleTree
from roundlog.segment_audits.segment import SegmentOrder, WorkerAnswer, audit_segment
from roundlog.training.repetition import replay_interval
from roundlog.training.run import Run

from tests.engine.segment_audits.audit_workers import Stand
from tests.engine.segment_audits.published_runs import INTERVALS, Liar, Trained, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(tmp_path_factory.mktemp("trained"))


def test_a_former_challenge_is_found_again(trained: Trained, tmp_path: Path) -> None:
    """After the loss of its directory a challenger looks for the interval that it has challenged with."""
    liar = Liar(trained, tmp_path / "liar")
    for interval in (1, 3, 5):
        liar.lie(interval, consistent=True)
    roots, run = list(liar.roots), Run(trained.job, liar.run)
    with run.held() as record:
        record(roots)
    for wrong in (5, 1, 3):
        root = replay_interval(run, wrong)[-1]
        claimed = [*roots[:wrong], root, *roots[wrong + 1 :]]
        challenged = MerkleTree(claimed).root
        found = trained.audit(tmp_path / f"audit {wrong}", liar.listing(), challenged=challenged)
        assert found.wrong is not None and found.wrong.interval == wrong and found.checkpoint_root == challenged
    other = trained.audit(tmp_path / "other", liar.listing(), challenged=bytes(32))
    assert other.wrong is not None, "no interval explains that challenge; one is wrong all the same"


@pytest.mark.parametrize(("every", "consistent"), [(2, True), (2, False), (4, False), (INTERVALS, True)])
def test_an_audit_ends_though_no_interval_explains_the_challenge(
    every: int, consistent: bool, trained: Trained, tmp_path: Path
) -> None:
    """What lies between a wrong interval and the next published state cannot be audited."""
    liar = Liar(trained, tmp_path / "liar")
    for interval in (2, 5):
        liar.lie(interval, consistent=consistent)
    orders: list[SegmentOrder] = []

    def works(order: SegmentOrder) -> WorkerAnswer:
        orders.append(order)
        assert len(orders) < 10 * INTERVALS, "the same order again and again"
        return audit_segment(order)

    found = trained.audit(
        tmp_path / "audit",
        liar.listing(every),
        make=lambda number: Stand(works),
        challenged=bytes(32),
    )
    assert found.wrong is not None and found.wrong.interval in (2, 5)
    assert set(found.right).isdisjoint({2, 5}) and {0, 1} <= set(found.right)
