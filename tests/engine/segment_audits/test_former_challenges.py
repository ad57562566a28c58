"""Audits that look for the interval of a former challenge, whose directory is lost."""

from __future__ import annotations

from pathlib import Path

from roundlog.commitments import MerkleTree
from roundlog.training.repetition import replay_interval
from roundlog.training.run import Run

from tests.engine.segment_audits.published_runs import Liar, Trained


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
