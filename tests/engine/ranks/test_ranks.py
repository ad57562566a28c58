"""Any number of ranks: the bits of one process, the same stops, and logs that everybody finds right."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog.execution.microbatch import samples_of
from roundlog.execution.ranks import samples_of_ranks
from roundlog.execution.ranks.rank_part import analyse_for
from roundlog.execution.ranks.rank_states import ownership
from roundlog.program import ProgramError
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions, Validation

from tests.engine.microbatch.random_programs import make
from tests.engine.ranks import on_ranks, on_trainings, random_optimizers
from tests.engine.ranks.random_optimizers import OPTIMIZERS
from tests.engine.ranks.rank_processes import call
from tests.engine.tasks import TASKS, in_bf16, short_layers_task


def compare(size: int, seeds: list[int], *how: Any, by: Sequence[Any] = ("on_ranks:run_programs",)) -> int:
    """Holds ranks against one process; returns how many programs there were. how: whether each rank cuts its samples,
    whether the programs are of several formats, and the bits of FP32 values. by: what the ranks run."""
    right = on_ranks.alone(seeds, *how[1:])
    logs = {seed: one[1] for seed, one in right.items()}
    function, *given = by
    answers: list[Any] = call(function, size, *given, logs, *how)
    for seed, (found, log, findings) in answers[0].items():
        assert found == right[int(seed)][0], seed
        assert findings == [], seed
        # They differ only where an element lies at the edge of the guard.
        assert (log == "") == (right[int(seed)][1] == ""), seed
    return len(answers[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "cut", "mixed", "bits", "seeds"),
    [
        # The last one stores a number that is expanded.
        (2, False, False, 32, [1, 7, 18, 23, 286]),
        (3, False, True, 32, range(16)),
        # To OVT's b_r of a spec; values of other formats keep theirs.
        (2, True, True, 24, range(400, 416)),
        *(
            pytest.param(size, cut, False, 32, range(60, 300), marks=pytest.mark.long)
            for size, cut in ((3, False), (6, False), (2, True))
        ),
    ],
)
def test_ranks_give_the_bits_of_one_process_for_random_programs(
    size: int, cut: bool, mixed: bool, bits: int, seeds: Sequence[int]
) -> None:
    assert compare(size, list(seeds), cut, mixed, bits) >= min(len(seeds), 10)


def test_more_ranks_than_samples_are_refused() -> None:
    program = make(0).program
    batch = samples_of(program)
    with pytest.raises(
        ProgramError, match=f"^{batch} samples of a batch cannot be shared out among {batch + 1} ranks: "
    ):
        samples_of_ranks(program, batch + 1)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "in_pieces"), [(2, True), pytest.param(3, False, marks=pytest.mark.long)])
def test_sums_over_ranks_have_the_bound_and_the_bits_of_the_whole(size: int, in_pieces: bool) -> None:
    """Ties, cancelling terms of all sizes, infinities and NaN."""
    assert call("on_ranks:run_sums", size, in_pieces) == [[]] * size


@pytest.mark.slow
@pytest.mark.parametrize(("size", "micro_batches"), [(3, 1), pytest.param(2, 6, marks=pytest.mark.long)])
def test_ranks_stop_where_one_process_does_and_go_on_afterwards(size: int, micro_batches: int) -> None:
    right = on_ranks.run_stops(None, micro_batches)
    assert [" " in found for found, _, _ in right.values()] == [True, True, True, True, False]
    assert call("on_ranks:run_stops", size, micro_batches)[0] == right


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
def test_ranks_train_to_the_roots_of_one_process_and_find_its_logs_right(size: int, tmp_path: Path) -> None:
    """Batch norm, dropout, clipping, accumulation, tied weights, and batches that the ranks do not divide. Logs are
    followed in micro-batches."""
    names = [name for name in TASKS if size == 2 or name != "linear"]
    for name in names:
        Job.from_task(functools.partial(TASKS[name], steps=6)).write(tmp_path / name)
    hold_trainings([str(tmp_path / name) for name in names], size)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_ranks_share_out_the_state_of_every_optimizer(size: int, tmp_path: Path) -> None:
    directories = [tmp_path / f"{seed}" for seed in range(len(OPTIMIZERS) * (1 if size == 2 else 4))]
    kept: dict[str, int] = {}
    for seed, directory in enumerate(directories):
        job = Job.from_task(functools.partial(random_optimizers.task, seed))
        job.write(directory)
        owners = ownership(job.program, analyse_for(job.program, size), size)
        name = list(OPTIMIZERS)[seed % len(OPTIMIZERS)]
        kept[name] = kept.get(name, 0) + len(owners.kept)
        # Somebody computes each slot of the state, and what one rank keeps nobody else reads.
        assert not owners.kept.keys() & owners.handed_out.keys()
        assert set(owners.kept.values()) <= set(range(size))
    # The plain one has no state of its own, but for batch norm's.
    assert all(count > 2 for name, count in kept.items() if name != "sgd")
    hold_trainings([str(one) for one in directories], size)


@pytest.mark.long
def test_ranks_train_bf16_layers_to_the_roots_of_one_process_with_and_without_tensor_cores(tmp_path: Path) -> None:
    """The column of ones beside what a layer is given is shared out with the samples. Sums over the batch of tensor
    cores depend on the order of their terms, so that no rank has a part of one."""
    Job.from_task(short_layers_task).write(tmp_path / "correctly rounded")
    Job.from_task(short_layers_task, arithmetic="hopper").write(tmp_path / "hopper")
    Job.from_task(lambda: short_layers_task(in_bf16), bits=24).write(tmp_path / "state in BF16")
    hold_trainings([str(one) for one in sorted(tmp_path.iterdir())], 2)


def hold_trainings(names: list[str], size: int) -> None:
    """Holds trainings by ranks against those of one process: roots, and logs that each finds right in the other one's.
    Ranks follow logs in micro-batches."""
    by_one = on_trainings.run_jobs(None, names, None)
    by_ranks = call("on_trainings:run_jobs", size, names, None)[0]
    logs_of_one = {name: log for name, (_, log) in by_one.items()}
    logs_of_ranks = {name: log for name, (_, log) in by_ranks.items()}
    followed_by_one = on_trainings.run_jobs(None, names, logs_of_ranks)
    followed_by_ranks = call("on_trainings:run_jobs", size, names, logs_of_one, 2 * size)[0]
    for name, (roots, _) in by_one.items():
        assert by_ranks[name][0] == roots, name
        assert followed_by_one[name] == followed_by_ranks[name] == [roots, []], name


@pytest.mark.slow
def test_ranks_go_on_after_a_stop_that_one_of_them_sees(tmp_path: Path) -> None:
    """The update that overflows is one rank's; the state before it, and after it, is everybody's."""
    task = random_optimizers.task(5)
    trained = [one for one in task.model.parameters() if one.requires_grad]
    # Words that a batch lacks have no gradient, and 0 / 0 for an update.
    job = Job.from_task(lambda: replace(task, steps=6, optimizer=torch.optim.RMSprop(trained, lr=0.01, eps=0.0)))
    owners = ownership(job.program, analyse_for(job.program, 2), 2)
    job.write(tmp_path / "job")
    losses: list[float] = []
    validation = Validation(job, task.dataset, 3, lambda step, loss: losses.append(loss))
    options = RunOptions(continue_after_stop=True, validation=validation)
    alone = Auditor(job, tmp_path / "alone", options).run()
    assert alone.stopped is not None and alone.stopped.startswith("step 0: ")
    stores = [index for index, node in enumerate(job.program.nodes) if node.op == "store"]
    assert any(f" operator {index} (store)" in alone.stopped for index in stores if index in owners.operators)
    # What is made up after the stop is random, and kept in the directory.
    shutil.copytree(tmp_path / "alone", tmp_path / "by ranks")
    (tmp_path / "by ranks" / "roots").write_bytes(b"")
    paths = [str(tmp_path / "job"), str(tmp_path / "by ranks")]
    roots, found = call("on_trainings:run_audit", 2, *paths, 4)[0]
    assert roots == [root.hex() for root in alone.state_roots]
    # The first one stands in the history that was copied.
    assert found == losses[1:] and len(found) == 2


@pytest.mark.slow
def test_slots_of_the_state_that_a_step_stores_in_each_other_are_copied_before_they_change() -> None:
    right = on_ranks.run_swaps(None)
    assert len(set(right)) == 4
    assert call("on_ranks:run_swaps", 2)[0] == right


@pytest.mark.slow
def test_a_state_that_the_ranks_have_left_behind_is_refused_and_nobody_waits() -> None:
    said = call("on_trainings:read_former_states", 2)[0]
    assert said == ["the ranks have gone on to another state: read a state before the next step is executed"] * 3


@pytest.mark.slow
@pytest.mark.parametrize(("size", "broken"), [(3, 1), pytest.param(2, 0, marks=pytest.mark.long)])
def test_a_rank_that_receives_one_bent_bit_is_found_at_the_end_of_the_interval(size: int, broken: int) -> None:
    said = call("on_trainings:run_with_a_broken_rank", size, broken, 4)
    (done, sentence), *others = said
    assert all(text == sentence for _, text in others)
    # Of two that differ, nobody knows which one is right.
    named, than = (broken, "all other ranks") if size > 2 else (1, "rank 0, which may itself be wrong")
    assert f", rank {named} (process " in sentence and f") had other values than {than}: " in sentence
    assert sentence.startswith(f"after step {done}, ") and done % 2
