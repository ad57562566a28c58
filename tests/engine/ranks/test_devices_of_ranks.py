"""Ranks on devices of their own, alike or not: the bits of one process on the CPU."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog.execution.ranks import Launch
from roundlog.execution.ranks.wire import suit_nccl
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.trainer import Trainer

from tests.engine.ranks import on_helpers, on_ranks
from tests.engine.ranks.rank_processes import call, seconds_to_stop, start
from tests.engine.running.foreign_device import NAME
from tests.engine.tasks import TASKS

FOREIGN, MIXED = [NAME, NAME], ["cpu", NAME]

cards = torch.cuda.device_count()
on_one_card = pytest.mark.skipif(cards < 1, reason="no CUDA device is here")
on_two_cards = pytest.mark.skipif(cards < 2, reason="fewer than two CUDA devices are here")

DEVICES = [
    pytest.param(FOREIGN, id="foreign"),
    pytest.param(MIXED, id="mixed"),
    pytest.param([NAME, "cpu"], id="mixed, rank 0 on the device"),
    pytest.param(["cuda:0", "cuda:0"], id="one card", marks=on_one_card),
    pytest.param(["cpu", "cuda:0"], id="CPU and card", marks=on_one_card),
    pytest.param(["cuda:0", "cuda:1"], id="two cards", marks=on_two_cards),
]


def hold_programs(devices: list[str], seeds: Sequence[int], cut: bool = False, mixed: bool = False) -> int:
    """Holds ranks on these devices against one process on the CPU; returns how many programs there were. mixed: they
    are of several formats."""
    right = on_ranks.alone(list(seeds), mixed)
    logs = {seed: one[1] for seed, one in right.items()}
    found: dict[str, Any] = call("on_devices:run", len(devices), devices, "on_ranks:run_programs", logs, cut, mixed)[0]
    for seed, (result, log, findings) in found.items():
        assert result == right[int(seed)][0], seed
        assert findings == [], seed
        assert (log == "") == (right[int(seed)][1] == ""), seed
    return len(found)


def test_a_rank_on_the_cpu_and_one_on_a_device_give_the_bits_of_one_process() -> None:
    """Programs that round, sum over the batch, gather slices and share out updates."""
    assert hold_programs(MIXED, [1, 18, 23]) == 3


@pytest.mark.slow
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("devices", DEVICES)
def test_ranks_on_devices_give_the_bits_of_one_process_for_random_programs(devices: list[str], cut: bool) -> None:
    assert hold_programs(devices, range(400, 424), cut) > 8


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "cut"), [(FOREIGN, False), (MIXED, True)])
def test_they_do_for_programs_of_several_formats(devices: list[str], cut: bool) -> None:
    assert hold_programs(devices, range(5), cut, mixed=True) > 3


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("devices", [*DEVICES, pytest.param([NAME, "cpu", NAME], id="three")])
def test_ranks_on_devices_do_for_many_programs(devices: list[str], cut: bool) -> None:
    assert hold_programs(devices, range(500, 700), cut) > 30


@pytest.mark.slow
@pytest.mark.parametrize("undecided", [False, True])
@pytest.mark.parametrize("devices", DEVICES)
def test_hostile_sums_over_devices_have_the_bound_and_the_bits_of_the_whole(
    devices: list[str], undecided: bool
) -> None:
    assert call("on_devices:run", len(devices), devices, "on_ranks:run_sums", undecided) == [[], []]


@pytest.mark.slow
@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("name", ["conv", *(pytest.param(name, marks=pytest.mark.long) for name in ("gpt", "linear"))])
def test_ranks_on_devices_train_and_audit_to_the_root_of_one_process(
    name: str, devices: list[str], tmp_path: Path
) -> None:
    Job.from_task(lambda: TASKS[name](steps=4)).write(tmp_path / "job")
    job = Job.read(tmp_path / "job")
    here = Trainer(job, tmp_path / "here").run()
    there = call("on_devices:train_and_audit", 2, devices, str(tmp_path / "job"), str(tmp_path))[0]
    assert there["roots"] == [here.checkpoint_root.hex()] * 2
    assert there["found"] == []
    audit = Auditor(job, tmp_path / "audit", log_dir=Path(there["log"]), verify_log=1.0).run()
    assert (audit.checkpoint_root, audit.findings, audit.unreadable) == (here.checkpoint_root, [], [])


@pytest.mark.slow
def test_a_role_and_its_helper_on_devices_come_to_the_root_of_one_process(tmp_path: Path) -> None:
    """Rank 0 fails as it fetches a state, and goes on alone."""
    job = ["on_helpers:run_with_a_fault", str(tmp_path), True]
    (errors, roots, warnings), said = call("on_devices:run", 2, FOREIGN, *job)
    assert errors == ["the disk is gone"] and len(warnings) == 1
    assert roots == [on_helpers.alone("conv", tmp_path / "alone")]
    assert "could not end a step that all ranks execute" in said


def killed(processes: list[Any], victim: int, speaks: int) -> list[str]:
    """What the others say once one of them is killed, after rank `speaks` has printed a line."""
    try:
        assert processes[speaks].stdout.readline() == "here\n"
        processes[victim].kill()
        since = time.monotonic()
        said = [one.communicate(timeout=60) for rank, one in enumerate(processes) if rank != victim]
        assert time.monotonic() - since < seconds_to_stop()
        assert all(one.returncode == 0 for rank, one in enumerate(processes) if rank != victim), said
        return [json.loads(out.splitlines()[-1]) for out, _ in said]
    finally:
        for one in processes:
            one.kill()
            one.wait()


@pytest.mark.slow
@pytest.mark.parametrize("devices", [one for one in DEVICES if "mixed" not in str(one.id)])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_in_a_training_on_devices_is_named(
    victim: int, devices: list[str], tmp_path: Path
) -> None:
    Job.from_task(lambda: TASKS["conv"](steps=400)).write(tmp_path / "job")
    processes = start(
        "on_devices:train_until_one_is_lost", 2, devices, str(tmp_path / "job"), str(tmp_path / "trained")
    )
    (said,) = killed(processes, victim, 0)
    assert f"rank {victim} (process {processes[victim].pid} on " in said


@pytest.mark.slow
@pytest.mark.parametrize("starts", [True, False])
def test_a_process_whose_collective_hangs_ends_with_the_name_of_the_rank_that_was_killed(starts: bool) -> None:
    processes = start("on_devices:wait_for_what_never_ends", 2, starts)
    (said,) = killed(processes, 1, 0)
    assert said.startswith(f"rank 1 (process {processes[1].pid} on ")
    assert said.endswith(" to carry on")


@pytest.mark.slow
def test_ranks_send_by_a_wire_that_is_looked_at_as_nccl_is() -> None:
    """By gloo, in its place."""
    right = on_ranks.alone([1, 18])
    logs = {seed: one[1] for seed, one in right.items()}
    found = call("on_devices:run_looked_at", 2, "on_ranks:run_programs", logs)[0]
    assert {seed: one[0] for seed, one in found.items()} == {str(seed): one[0] for seed, one in right.items()}


@pytest.mark.slow
def test_a_device_that_is_not_there_is_named_with_its_rank_by_all(tmp_path: Path) -> None:
    Job.from_task(lambda: TASKS["linear"](steps=2)).write(tmp_path / "job")
    for said, device in call("on_devices:choose", 2, str(tmp_path / "job"), ["cpu", "cuda:99"]):
        assert said.startswith("rank 1 (process ") and device == "cpu"
        assert "cannot take part: the device 'cuda:99' cannot be used (" in said
        assert said.endswith("): choose another, cpu is here")


def test_nccl_is_for_ranks_with_a_card_each_and_one_version() -> None:
    assert suit_nccl(["a (2, 27)", "b (2, 27)"])
    for wrong in (["a (2, 27)", "a (2, 27)"], ["a (2, 27)", ""], ["", ""], ["a (2, 27)", "b (2, 28)"]):
        assert not suit_nccl(wrong)


def launch(local_rank: int | None) -> Launch:
    return Launch(5, 8, "10.0.0.1", 29500, "tiebreak/none/0", is_host=False, local_rank=local_rank)


@pytest.mark.parametrize(
    ("chosen", "local_rank", "there", "device"),
    [
        ("cuda", 1, 4, "cuda:1"),
        ("cuda", 0, 1, "cuda:0"),
        # More processes than devices share them.
        ("cuda", 3, 2, "cuda:1"),
        ("cuda", 1, 0, "cuda"),
        ("cuda", None, 4, "cuda"),
        ("cuda:0", 1, 4, "cuda:0"),
        ("cpu", 1, 4, "cpu"),
    ],
)
def test_every_process_of_a_machine_has_a_card_of_its_own(
    chosen: str, local_rank: int | None, there: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    assert launch(local_rank).device(chosen) == device
