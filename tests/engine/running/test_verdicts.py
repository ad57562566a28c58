"""Whatever is done to a log, the verdict on the claim is that of a plain recomputation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from roundlog.commitments import MerkleTree
from roundlog.rounding import LogFindingKind
from roundlog.spec import POLICY_THRESHOLD
from roundlog.training.auditor import Auditor, LogStanding, audit
from roundlog.training.job import Job
from roundlog.training.run import RunError
from roundlog.training.trainer import Trainer, TrainingResult, log_path

from tests.engine import forged_logs
from tests.engine.kept_jobs import kept_job


@dataclass(frozen=True)
class Honest:
    job: Job
    result: TrainingResult

    @property
    def root(self) -> bytes:
        return self.result.checkpoint_root

    def log(self, target: Path, change: Callable[[forged_logs.Steps], None]) -> Path:
        return forged_logs.rewrite(self.job, self.result.log_dir, target, change)

    def copy(self, target: Path) -> Path:
        return forged_logs.copied(self.result.log_dir, target)

    def forgers_claim(self, log: Path, room: Path) -> list[bytes]:
        """Roots of a run that believes every word of a log, which a forger would claim."""
        return Auditor(self.job, room, log_dir=log, verify_log=0.0).run().state_roots


@pytest.fixture(scope="module")
def honest(halfway: tuple[Job, TrainingResult]) -> Honest:
    return Honest(*halfway)


def bend(honest: Honest, target: Path, rng: np.random.Generator, count: int) -> Path:
    return honest.log(target, lambda steps: forged_logs.bent(steps, rng, count))


def thin(honest: Honest, target: Path, rng: np.random.Generator, count: int) -> Path:
    return honest.log(target, lambda steps: forged_logs.thinned(steps, rng, count))


def damage(honest: Honest, target: Path, rng: np.random.Generator, count: int) -> Path:
    log = honest.copy(target)
    for interval in range(count):
        if rng.integers(2):
            forged_logs.cut(log_path(log, interval), rng)
        else:
            forged_logs.flipped(log_path(log, interval), rng)
    return log


def remove(honest: Honest, target: Path, rng: np.random.Generator, count: int) -> Path:
    log = honest.copy(target)
    for interval in rng.choice(honest.job.spec.intervals, count, replace=False):
        log_path(log, int(interval)).unlink()
    return log


def one_decisive_bend(honest: Honest, room: Path) -> TrainingResult:
    """A training with one bent decision that leads to another root; some are lost in the roundings after them."""
    for seed in range(9):
        forged = forged_logs.train_forging(honest.job, room / f"forger {seed}", np.random.default_rng([seed, 1]), 1)
        if forged.checkpoint_root != honest.root:
            return forged
    raise AssertionError("of nine bent decisions none is decisive")


CHANGES = {
    "whole": (lambda honest, target, rng: honest.copy(target), LogStanding.RIGHT),
    "one bent": (partial(bend, count=1), LogStanding.WRONG),
    "all bent": (partial(bend, count=10**6), LogStanding.WRONG),
    "one missing": (partial(thin, count=1), LogStanding.WRONG),
    "many missing": (partial(thin, count=50), LogStanding.WRONG),
    "one damaged": (partial(damage, count=1), LogStanding.UNUSABLE),
    "all damaged": (partial(damage, count=2), LogStanding.UNUSABLE),
    "one absent": (partial(remove, count=1), LogStanding.UNUSABLE),
}


@pytest.mark.slow_but("one bent")
@pytest.mark.parametrize("change", CHANGES)
def test_the_verdict_is_that_of_a_plain_recomputation(change: str, honest: Honest, tmp_path: Path) -> None:
    make, standing = CHANGES[change]
    rng = np.random.default_rng([*change.encode()])
    log = make(honest, tmp_path / "log", rng)  # type: ignore[operator]
    forged = honest.forgers_claim(log, tmp_path / "forger")
    right = honest.result.state_roots
    fabricated = [right[0], bytes(rng.bytes(32))]
    for number, claim in enumerate((right, forged, fabricated)):
        found = audit(honest.job, tmp_path / f"{number}", claim=claim, log_dir=log)
        assert found.state_roots == right and found.checkpoint_root == honest.root
        assert found.right == (claim == right)
        assert found.log is standing
        wrong = [i for i in range(len(right)) if claim[i] != right[i]]
        assert found.first_wrong == (wrong[0] if wrong else None)
        assert bool(found.findings) == (standing is LogStanding.WRONG)
        assert bool(found.unreadable) == (standing is LogStanding.UNUSABLE)
        again = audit(honest.job, tmp_path / f"{number}", claim=claim, log_dir=log)
        assert again == found, "an audit that is looked at again says the same"


def test_what_a_sample_has_found_is_not_drawn_for_again(honest: Honest, tmp_path: Path) -> None:
    """A killed audit that could not remember would draw until it misses the forgery."""
    log = bend(honest, tmp_path / "log", np.random.default_rng(3), 10**6)
    forged = MerkleTree(honest.forgers_claim(log, tmp_path / "forger")).root

    class Killed(Exception):
        pass

    def kill(why: str) -> None:
        raise Killed

    with pytest.raises(Killed):
        audit(honest.job, tmp_path / "a", claim=forged, log_dir=log, verify_log=0.5, on_distrust=kill)
    for _ in range(2):
        found = audit(honest.job, tmp_path / "a", claim=forged, log_dir=log, verify_log=0.0)
        assert found.right is False and found.log is LogStanding.WRONG


def test_a_log_that_leads_to_another_root_than_the_claim_accuses_nobody(honest: Honest, tmp_path: Path) -> None:
    """A trainer that trained honestly publishes a forger's log, of which nothing was verified."""
    forged = one_decisive_bend(honest, tmp_path)
    told: list[str] = []
    found = audit(
        honest.job, tmp_path / "a", claim=honest.root, log_dir=forged.log_dir, verify_log=0.0, on_distrust=told.append
    )
    assert told == ["it leads to another root than the claimed one"]
    assert found.right is True and found.log is LogStanding.WRONG and found.findings


@pytest.mark.slow
def test_a_claim_is_never_right_in_an_audit_that_found_its_log_incomplete(honest: Honest, tmp_path: Path) -> None:
    """One decisive bend that a sample of 5 % misses nineteen times in twenty, and a few missing entries that everybody
    finds: whoever finds those goes on without the log, and so finds the bend."""
    forged = one_decisive_bend(honest, tmp_path)
    claim, rng = forged.checkpoint_root, np.random.default_rng(2)
    log = forged_logs.rewrite(
        honest.job, forged.log_dir, tmp_path / "log", lambda steps: forged_logs.thinned(steps, rng, 60)
    )
    for number in range(10):
        found = audit(honest.job, tmp_path / f"{number}", claim=claim, log_dir=log, verify_log=0.05)
        assert found.right is False and found.log is LogStanding.WRONG
        assert LogFindingKind.MISSING in {finding.kind for finding in found.findings}


@pytest.mark.slow_but("0")
@pytest.mark.parametrize("seed", range(2))
def test_one_decisive_bend_is_found_by_whoever_verifies_all(seed: int, honest: Honest, tmp_path: Path) -> None:
    forged = forged_logs.train_forging(honest.job, tmp_path / "forger", np.random.default_rng(seed), 1)
    found = audit(honest.job, tmp_path / "audit", claim=forged.state_roots, log_dir=forged.log_dir)
    assert found.checkpoint_root == honest.root
    assert found.right is (forged.state_roots == honest.result.state_roots)
    assert found.log is LogStanding.WRONG


def test_no_value_of_a_verified_log_gets_into_the_states(honest: Honest, tmp_path: Path) -> None:
    log = bend(honest, tmp_path / "log", np.random.default_rng(9), 10**6)
    checked = Auditor(honest.job, tmp_path / "checked", log_dir=log)
    assert checked.run().state_roots == honest.result.state_roots
    # And nobody takes the states of a run that believed a log for those of an audit.
    Auditor(honest.job, tmp_path / "believed", log_dir=log, verify_log=0.5).run()
    for log_dir in (None, log):
        with pytest.raises(RunError, match="another role's run"):
            Auditor(honest.job, tmp_path / "believed", log_dir=log_dir)


def test_a_log_that_was_not_compared_is_not_called_right(honest: Honest, tmp_path: Path) -> None:
    """Audited without a log, or with another one: the second audit has nothing to compute, and compares nothing."""
    job, run = honest.job, tmp_path / "run"
    assert audit(job, run, claim=honest.root).log is LogStanding.NOT_GIVEN
    later = audit(job, run, claim=honest.root, log_dir=honest.result.log_dir)
    assert later.right is True and later.log is LogStanding.UNUSABLE
    assert "was not compared and of 1 more intervals" in later.unreadable[0]
    other = bend(honest, tmp_path / "log", np.random.default_rng(1), 10**6)
    first = audit(job, tmp_path / "other", claim=honest.root, log_dir=other)
    assert first.log is LogStanding.WRONG
    second = audit(job, tmp_path / "other", claim=honest.root, log_dir=honest.result.log_dir)
    assert second.log is LogStanding.UNUSABLE and not second.findings, "the findings are another log's"


@pytest.mark.parametrize("interval", [0, 1])
def test_a_log_damaged_after_it_was_compared_is_not_called_right(interval: int, honest: Honest, tmp_path: Path) -> None:
    log = honest.copy(tmp_path / "log")
    assert audit(honest.job, tmp_path / "run", log_dir=log).log is LogStanding.RIGHT
    forged_logs.flipped(log_path(log, interval), np.random.default_rng(interval))
    found = audit(honest.job, tmp_path / "run", log_dir=log)
    assert found.log is LogStanding.UNUSABLE and len(found.unreadable) == 1
    assert log_path(log, interval).name in found.unreadable[0]


def test_under_threshold_a_log_that_cannot_be_used_leaves_the_claim_undecided(tmp_path: Path) -> None:
    kept = kept_job("logistic_sgd")
    job = replace(kept, spec=replace(kept.spec, rounding_policy=POLICY_THRESHOLD))
    result = Trainer(job, tmp_path / "run").run()
    whole = audit(job, tmp_path / "whole", claim=result.checkpoint_root, log_dir=result.log_dir)
    assert whole.right is True and whole.log is LogStanding.RIGHT
    log = forged_logs.copied(result.log_dir, tmp_path / "log")
    log_path(log, 0).unlink()
    cut = audit(job, tmp_path / "cut", claim=bytes(32), log_dir=log)
    assert cut.right is None and cut.log is LogStanding.UNUSABLE
