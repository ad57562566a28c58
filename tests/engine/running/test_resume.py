"""A killed process carries on to the same root; a directory that is not its own is left alone."""

import shutil

import pytest
from roundlog.commitments import state_root
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.repetition import replay_interval, replay_state
from roundlog.training.run import Run, RunError
from roundlog.training.trainer import Trainer

from tests.engine.running.deaths import Point, after_rename, before_rename, before_sync, killed_at
from tests.engine.running.processes import finish, start
from tests.engine.tasks import conv_task, linear_task


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained")
    Job.from_task(lambda: conv_task(steps=12, interval=2)).write(directory / "job")
    job = Job.read(directory / "job")
    return directory, job, Trainer(job, directory / "run").run()


class Tell:
    """A listener that a run tells of every step."""

    def __call__(self, event: object) -> None: ...


def after_step(number: int) -> Point:
    return Point(Tell, "__call__", number)


POINTS = [
    before_sync(1),
    after_step(1),
    before_sync(3),
    before_rename(1),
    after_rename(1),
    after_step(3),
    before_sync(2),
    after_rename(2),
    before_rename(2),
    after_step(2),
]
"""Lives of one run after another: each gets on by an interval at most."""


@pytest.mark.slow
@pytest.mark.parametrize("role", ["train", "audit"])
def test_a_process_killed_at_any_point_carries_on_to_the_same_root(role: str, trained, tmp_path) -> None:
    directory, job, result = trained

    def live() -> None:
        if role == "train":
            Trainer(job, tmp_path / "run", RunOptions(on_step=Tell())).run()
        else:
            Auditor(job, tmp_path / "run", RunOptions(on_step=Tell()), log_dir=result.log_dir, verify_log=1.0).run()

    for point in POINTS:
        killed_at(point, live)
    last = finish(
        start(
            "one thread", role, directory / "job", tmp_path / "run", *([result.log_dir, 1.0] if role == "audit" else [])
        )
    )
    assert last == {"root": result.checkpoint_root.hex(), "findings": []}
    if role == "train":
        for path in result.log_dir.iterdir():
            assert (tmp_path / "run" / "log" / path.name).read_bytes() == path.read_bytes()


def test_a_finished_run_is_not_run_again(trained, tmp_path) -> None:
    directory, job, result = trained
    shutil.copytree(directory / "run", tmp_path / "run")
    steps = []
    again = Trainer(job, tmp_path / "run", RunOptions(on_step=steps.append)).run()
    assert steps == []
    assert again.checkpoint_root == result.checkpoint_root


def flip(path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("damage", ["cut", "flip", "remove"])
def test_a_damaged_checkpoint_is_computed_again(damage: str, trained, tmp_path) -> None:
    directory, job, result = trained
    shutil.copytree(directory / "run", tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / "00000012.safetensors"
    data = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    else:
        data[-5] ^= 1
        path.write_bytes(data if damage == "flip" else data[:-9])
    assert Trainer(job, tmp_path / "run").run().checkpoint_root == result.checkpoint_root


def test_a_torn_record_of_roots_is_computed_again(trained, tmp_path) -> None:
    directory, job, result = trained
    shutil.copytree(directory / "run", tmp_path / "run")
    roots = tmp_path / "run" / "roots"
    roots.write_bytes(roots.read_bytes()[:-40])
    assert Trainer(job, tmp_path / "run").run().checkpoint_root == result.checkpoint_root


@pytest.mark.parametrize("name", ["roots", "roots.sums"])
@pytest.mark.parametrize("interval", [0, 2, 5])
def test_a_bit_that_flips_on_record_is_mended_from_the_checkpoint(name: str, interval: int, trained, tmp_path) -> None:
    directory, job, result = trained
    shutil.copytree(directory / "run", tmp_path / "run")
    whole = {path: path.read_bytes() for path in tmp_path.glob("run/roots*")}
    flip(tmp_path / "run" / name, 32 * interval + 7)
    assert Run(job, tmp_path / "run").recorded_roots() == result.state_roots
    steps = []
    again = Trainer(job, tmp_path / "run", RunOptions(on_step=steps.append)).run()
    assert again.state_roots == result.state_roots
    assert steps == []
    assert {path: path.read_bytes() for path in tmp_path.glob("run/roots*")} == whole


@pytest.mark.slow_cases("names1-*", "names2-*")
@pytest.mark.parametrize(("interval", "first"), [(0, 0), (3, 0), (4, 8), (5, 8)])
@pytest.mark.parametrize("names", [["roots"], ["roots.sums"], ["roots", "roots.sums"]])
def test_a_bit_that_flips_on_record_where_no_checkpoint_is_kept_is_computed_again(
    names: list[str], interval: int, first: int, trained, tmp_path
) -> None:
    _, job, result = trained
    Trainer(job, tmp_path / "run", RunOptions(keep_every=4)).run()
    if interval == 3 or (interval == 5 and len(names) == 1):
        # These are kept: without them, they can only be computed again.
        (tmp_path / "run" / "checkpoints" / f"{2 * interval + 2:08d}.safetensors").unlink()
    for name in names:
        flip(tmp_path / "run" / name, 32 * interval + 31)
    assert Run(job, tmp_path / "run").recorded_roots() == result.state_roots[:interval]
    steps = []
    again = Trainer(job, tmp_path / "run", RunOptions(keep_every=4, on_step=steps.append)).run()
    assert again.state_roots == result.state_roots
    assert [event.step for event in steps] == list(range(first, 12))
    assert Run(job, tmp_path / "run").recorded_roots() == result.state_roots


def test_a_record_of_another_run_is_not_taken_over(trained, tmp_path) -> None:
    _, job, result = trained
    Job.from_task(lambda: conv_task(steps=12, interval=2, seed=77)).write(tmp_path / "other")
    Trainer(Job.read(tmp_path / "other"), tmp_path / "strange", RunOptions(keep_every=6)).run()
    Trainer(job, tmp_path / "run", RunOptions(keep_every=6)).run()
    for name in ("roots", "roots.sums"):
        shutil.copy(tmp_path / "strange" / name, tmp_path / "run" / name)
    assert Run(job, tmp_path / "run").recorded_roots() == []
    assert Trainer(job, tmp_path / "run").run().state_roots == result.state_roots


def test_checkpoints_may_be_kept_every_few_intervals(trained, tmp_path) -> None:
    _, job, result = trained
    run = Trainer(job, tmp_path / "run", RunOptions(keep_every=4)).run()
    assert run.checkpoint_root == result.checkpoint_root
    kept = sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["00000008.safetensors", "00000012.safetensors"]
    assert replay_interval(Run(job, tmp_path / "run"), 4)[-1] == result.state_roots[4]


def test_an_interval_is_replayed_to_the_committed_root(trained) -> None:
    directory, job, result = trained
    for interval in (0, 3, 5):
        roots = replay_interval(Run(job, directory / "run"), interval)
        assert len(roots) == 2
        assert roots[-1] == result.state_roots[interval]
    with pytest.raises(ValueError, match="interval 6 is not one of them"):
        replay_interval(Run(job, directory / "run"), 6)


def test_a_state_is_replayed_from_the_newest_checkpoint_before_it(trained) -> None:
    directory, job, _ = trained
    run = Run(job, directory / "run")
    assert [state_root(replay_state(run, steps)) for steps in (7, 8)] == replay_interval(run, 3)
    assert state_root(replay_state(run, 0)) == job.spec.initial_state_root
    with pytest.raises(ValueError, match="the job has 12 steps, not 13"):
        replay_state(run, 13)


def test_a_directory_of_another_job_is_refused(trained, tmp_path) -> None:
    directory, _, _ = trained
    Job.from_task(linear_task).write(tmp_path / "job")
    other = Job.read(tmp_path / "job")
    with pytest.raises(RunError, match="the run of another job"):
        Trainer(other, directory / "run")


def test_an_auditor_does_not_carry_on_from_what_the_trainer_computed(trained) -> None:
    directory, job, _ = trained
    with pytest.raises(RunError, match="another role's run"):
        Auditor(job, directory / "run")


@pytest.mark.parametrize("device", ["nonsense", "meta", "xpu:99", "cuda:99"])
def test_a_device_that_is_not_here_is_a_clear_error(device: str, trained, tmp_path) -> None:
    _, job, _ = trained
    with pytest.raises(
        RunError, match=f"the device '{device}' cannot be used .*: choose another, cpu is here"
    ) as caught:
        Trainer(job, tmp_path / "run", RunOptions(device=device))
    assert "\n" not in str(caught.value)


def test_two_processes_cannot_share_a_directory(trained, tmp_path) -> None:
    _, job, _ = trained

    def second(event) -> None:
        if event.step == 1:
            with pytest.raises(RunError, match="in use by another process"):
                Auditor(job, tmp_path / "run").run()

    Auditor(job, tmp_path / "run", RunOptions(on_step=second)).run()
