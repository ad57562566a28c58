"""A killed process carries on to the same root; a directory that is not its own is left alone."""

import gc
import json
import shutil

import pytest
import torch
from roundlog.capture import Task
from roundlog.commitments import state_root
from roundlog.segment_audits.segment import Segment, execute
from roundlog.storage import StorageError, save_state
from roundlog.training.auditor import Auditor
from roundlog.training.export import ExportError, trained_state
from roundlog.training.fabricated_values import noted_stop
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.repetition import repeat, replay_interval, replay_state
from roundlog.training.run import Run, RunError
from roundlog.training.run_files import load_kept, wrong_checkpoint
from roundlog.training.trainer import Trainer
from safetensors.torch import load_file

from tests.engine.kept_jobs import kept_job
from tests.engine.running.deaths import Point, after_rename, before_rename, before_sync, killed_at
from tests.engine.running.processes import finish, start
from tests.engine.tasks import features_task, linear_task


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained")
    Job.from_task(lambda: features_task(steps=12, interval=2), compare=False).write(
        directory / "job"
    )  # keeps a tensor as it is
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


@pytest.mark.parametrize("name", ["roots", "roots.sums"])
@pytest.mark.parametrize("interval", [0, 5])
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


@pytest.mark.slow_but("4-8-names2")
@pytest.mark.parametrize(
    ("interval", "first", "names"),
    [
        (0, 0, ["roots"]),
        (3, 0, ["roots", "roots.sums"]),
        (4, 8, ["roots.sums"]),
        (5, 8, ["roots"]),
        (5, 8, ["roots", "roots.sums"]),
    ],
)
def test_a_bit_that_flips_on_record_where_no_checkpoint_is_kept_is_computed_again(
    interval: int, first: int, names: list[str], trained, tmp_path
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


def test_a_checkpoint_holds_what_steps_change_and_the_last_one_all(trained, tmp_path) -> None:
    directory, job, result = trained
    kept = [set(load_file(path)) for path in sorted((directory / "run" / "checkpoints").iterdir())]
    assert kept == [{*job.program.moved_states}] * 5 + [{*job.program.states}] and len(kept[5] - kept[0]) == 1
    state = trained_state(directory / "run", 4)
    tensors = state.load(state.types)
    assert state_root(tensors[name] for name in job.program.states) == result.state_roots[1]

    shutil.copytree(directory / "run", tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "00000012.safetensors").unlink()
    with pytest.raises(ExportError, match="what no step changes at its end, after 12 steps: let the run end"):
        trained_state(tmp_path / "run", 4)

    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record.pop("whole_after") == 12
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    with pytest.raises(RunError, match="or too old: if this is your own run of this job, remove that file"):
        Trainer(job, tmp_path / "run")
    (tmp_path / "run" / "run.json").unlink()
    whole = tmp_path / "run" / "checkpoints" / "00000006.safetensors"
    save_state(whole, job.program.states, load_kept(directory / "run", job, 6)[0])
    assert wrong_checkpoint(tmp_path / "run", job, 6, result.state_roots[2]).startswith("it has ")
    found = Trainer(job, tmp_path / "run").run(look_over=True)
    assert found.state_roots == result.state_roots and found.mended == [2]

    shutil.copytree(directory / "job", tmp_path / "job")
    job, base = Job.read(tmp_path / "job"), tmp_path / "job" / "initial.safetensors"
    with base.open("r+b") as file:
        file.seek(8 + int.from_bytes(file.read(8), "little"))
        file.write(bytes(base.stat().st_size - file.tell()))
    with pytest.raises(StorageError, match=r"initial\.safetensors: tensor '.*' has changed since .*: restore it$"):
        Trainer(job, tmp_path / "run").run(look_over=True)


def test_checkpoints_after_a_stop_hold_what_was_fabricated(tmp_path) -> None:
    def task() -> Task:
        made = linear_task(steps=8, interval=2)
        made.model.bias.requires_grad_(False)
        made.optimizer.param_groups[0]["lr"] = 1e38
        return made

    job = Job.from_task(task, compare=False)
    found = Trainer(job, tmp_path, RunOptions(continue_after_stop=True)).run()
    (step, _), kept = noted_stop(tmp_path), [load_kept(tmp_path, job, 2 * n + 2) for n in range(4)]
    assert step < 4 and [root for _, root, _ in kept] == found.state_roots
    assert not torch.equal(kept[-1][0][-1], job.initial["parameter/bias"])


def test_intervals_and_states_are_replayed_to_the_committed_roots(trained) -> None:
    directory, job, result = trained
    run = Run(job, directory / "run")
    for interval in (0, 3, 5):
        roots = replay_interval(run, interval)
        assert len(roots) == 2 and roots[-1] == result.state_roots[interval]
    with pytest.raises(ValueError, match="interval 6 is not one of them"):
        replay_interval(run, 6)
    assert [state_root(replay_state(run, steps)) for steps in (7, 8)] == replay_interval(run, 3)
    assert state_root(replay_state(run, 0)) == job.spec.initial_state_root
    with pytest.raises(ValueError, match="the job has 12 steps, not 13"):
        replay_state(run, 13)


def test_a_directory_of_another_job_is_refused(trained) -> None:
    directory, _, _ = trained
    with pytest.raises(RunError, match="the run of another job"):
        Trainer(kept_job("logistic_sgd"), directory / "run")


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


@pytest.mark.slow
def test_two_states_are_in_memory_before_and_after_a_step(tmp_path):
    job = kept_job("gpt")
    kind = max(job.program.moved_states.values(), key=lambda kind: kind.numel)
    a_state = sum(one == kind for one in job.program.states.values())
    found: list[int] = []

    def alive() -> set[int]:
        gc.collect()
        tensors = (x for x in gc.get_objects() if issubclass(type(x), torch.Tensor) and x.dtype == torch.float32)
        return {x.data_ptr() for x in tensors if tuple(x.shape) == kind.shape}

    of_others = alive()

    def count(_: object) -> None:
        found.append(len(alive() - of_others))

    options = RunOptions(on_step=count)
    trainer = Trainer(job, tmp_path / "run", options)
    roots = trainer.run().state_roots
    replay_interval(Run(job, tmp_path / "run", options), 1)
    repeat(job, roots, tmp_path / "none", tmp_path / "work", [1], options)
    run, whole = Run(job, tmp_path / "other", options), Segment(0, job.spec.intervals)
    for states in execute(run, whole, list(job.initial.values())):
        states.clear()
    assert len(found) == 4 + 2 + 4 + 4 and max(found) == 2 * a_state
