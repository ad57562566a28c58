"""Runs that ranks execute one after another with rank 0: the roots of one process, whatever becomes of the helpers."""

from __future__ import annotations

from pathlib import Path

import pytest
from roundlog.execution import StoppedError
from roundlog.training.trainer import Trainer

from tests.engine.ranks import on_helpers
from tests.engine.ranks.rank_processes import answers, call, start

pytestmark = pytest.mark.slow

ALONE = "until all ranks are started again, rank 0 goes on alone, from the last checkpoint: "


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The roots of one process."""
    place = tmp_path_factory.mktemp("alone")
    return {name: on_helpers.alone(name, place / name) for name in ("linear", "conv", "features")}


def test_one_run_after_another_is_helped_with_and_a_job_is_sent_once(right: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(StoppedError) as stopped:
        Trainer(on_helpers.diverging(), tmp_path / "alone").run()
    (roots, said, warnings, sent), helped = call("on_helpers:run_many", 2, str(tmp_path))
    # One came while the helpers were in use.
    assert roots == [right[name] for name in ("linear", "features", "conv", "linear")] and warnings == []
    assert said == str(stopped.value)
    # Three steps, of which one is not on record, four, six, none of a run that has ended, and some until one stops.
    assert 3 + 4 + 6 < helped < 3 + 4 + 6 + 8
    assert sent == 4
    assert not list(tmp_path.rglob("sent"))


@pytest.mark.parametrize(
    ("size", "broken"), [pytest.param(2, 1, marks=pytest.mark.long), pytest.param(3, 2, marks=pytest.mark.long), (3, 0)]
)
def test_a_rank_that_receives_a_bent_number_makes_no_wrong_root(
    size: int, broken: int, right: dict[str, str], tmp_path: Path
) -> None:
    (roots, errors, warnings), *helped = call("on_helpers:run_bent", size, str(tmp_path), broken, 4)
    assert roots == [right["linear"], right["conv"]]
    if broken == 0:
        # The others can say that it is rank 0, so its own word is not taken; they help with the next attempt.
        (sentence,) = errors
        assert ", rank 0 (process " in sentence and "had other values than all other ranks" in sentence
        assert warnings == [] and all(count > 6 for count in helped)
        return
    (warning,) = warnings
    assert (
        warning.startswith("until all ranks are started again, rank 0 goes on alone, from the last checkpoint")
        and f", rank {broken} (" in warning
    )
    assert errors == [] and all(count < 6 for count in helped)


def test_what_the_helpers_cannot_take_part_in_rank_0_executes_alone(right: dict[str, str], tmp_path: Path) -> None:
    """A helper has no room for one job, which the other one has."""
    (roots, warnings), *helped = call("on_helpers:run_unfit", 3, str(tmp_path), 20_000)
    small = Trainer(on_helpers.two_samples(), tmp_path / "alone").run().checkpoint_root.hex()
    assert roots == [right["conv"], small, right["features"], right["linear"]]
    no_room, too_few, not_sent = warnings
    assert no_room.startswith("rank 0 executes this job alone: rank 2 (process ")
    assert "cannot take part: the job has" in no_room and "more than the 20000 allowed" in no_room
    assert too_few == "rank 0 executes this job alone: 2 samples of a batch cannot be shared out among 3 ranks"
    assert not_sent.startswith("rank 0 executes this job alone: it cannot be sent to the other ranks (")
    assert helped == [6, 6]


def test_a_helper_whose_device_cannot_compute_a_jobs_products_says_so_when_it_has_come(tmp_path: Path) -> None:
    (roots, warnings), helped = call("on_helpers:run_with_products", 2, str(tmp_path), "hopper")
    alone = [Trainer(on_helpers.of_tensor_cores(name), tmp_path / name).run() for name in ("hopper", "ampere")]
    assert roots == [one.checkpoint_root.hex() for one in alone]
    (warning,) = warnings
    assert warning.startswith("rank 0 executes this job alone: rank 1 (process ")
    assert warning.endswith("cannot take part: a card does not compute products of bf16 as hopper has them")
    assert helped == 6


@pytest.mark.long
def test_rank_0_goes_on_alone_where_a_helper_is_lost(right: dict[str, str], tmp_path: Path) -> None:
    processes = start("on_helpers:run_and_lose", 3, str(tmp_path))
    (roots, warnings), _, said = answers(processes)
    assert roots == [right["linear"], right["conv"]]
    (warning,) = warnings
    assert warning.startswith(ALONE)
    named = f"rank 1 (process {processes[1].pid} on "
    assert named in warning and said.startswith(named)


@pytest.mark.parametrize("fetching", [pytest.param(False, marks=pytest.mark.long), True])
def test_an_error_of_rank_0_in_the_midst_of_a_step_lets_the_helpers_go(
    fetching: bool, right: dict[str, str], tmp_path: Path
) -> None:
    (errors, roots, warnings), said = call("on_helpers:run_with_a_fault", 2, str(tmp_path), fetching)
    assert errors == ["the disk is gone"] and roots == [right["conv"]]
    assert "rank 0 (process " in said and "could not end a step that all ranks execute" in said
    assert len(warnings) == 1 and "goes on alone" in warnings[0]
