"""Ranks on devices of their own, alike or not: the bits of one process on the CPU."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog.execution.ranks import Launch, LostRankError, Ranks, dismiss
from roundlog.execution.ranks.group import suit_nccl
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.rank_runs import agree, by_ranks, help_rank_0
from roundlog.training.trainer import Trainer

from tests.engine.kept_jobs import KEPT_JOBS, kept_job
from tests.engine.ranks import test_helped_runs
from tests.engine.ranks.rank_processes import call, end, named, seconds_to_stop, start
from tests.engine.ranks.test_ranks import compare
from tests.engine.running import foreign_device
from tests.engine.running.foreign_device import NAME

FOREIGN, MIXED = [NAME, NAME], ["cpu", NAME]

cards = torch.cuda.device_count()
on_one_card = pytest.mark.skipif(cards < 1, reason="no CUDA device is here")
on_two_cards = pytest.mark.skipif(cards < 2, reason="fewer than two CUDA devices are here")

DEVICES = [
    pytest.param(FOREIGN, id="foreign", marks=pytest.mark.long),
    pytest.param(MIXED, id="mixed"),
    pytest.param(["cuda:0", "cuda:0"], id="one card", marks=on_one_card),
    pytest.param(["cpu", "cuda:0"], id="CPU and card", marks=on_one_card),
    pytest.param(["cuda:0", "cuda:1"], id="two cards", marks=on_two_cards),
]


@contextmanager
def _usable(name: str) -> Iterator[None]:
    """A block in which this process has a device of this name."""
    if name != foreign_device.NAME:
        yield
        return
    foreign_device.install()
    with foreign_device.foreign():
        yield


def run(ranks: Ranks, devices: list[str], function: str, *arguments: Any) -> Any:
    """What a function `module:name` of these tests returns, with every rank on its own device."""
    with _usable(devices[ranks.rank]):
        ranks.use(torch.device(devices[ranks.rank]))
        return named(function)(ranks, *arguments)


def train_and_audit(ranks: Ranks, devices: list[str], job_directory: str, place: str) -> dict[str, Any]:
    """The roots of a training by ranks, and of an audit in micro-batches that follows its log; what the audit finds."""
    job, room, device = Job.read(Path(job_directory)), Path(place), devices[ranks.rank]
    with _usable(device):
        agree(ranks, job, device)
        if ranks.rank:
            help_rank_0(ranks, job)
            help_rank_0(ranks, job)
            return {}
        trained = Trainer(job, room / "trained", by_ranks(RunOptions(), ranks)).run()
        dismiss(ranks)
        options = by_ranks(RunOptions(micro_batches=2 * ranks.size), ranks)
        audited = Auditor(job, room / "audited", options, log_dir=trained.log_dir, verify_log=1.0).run()
        dismiss(ranks)
    return {
        "roots": [one.checkpoint_root.hex() for one in (trained, audited)],
        "found": [*map(str, audited.findings), *map(str, audited.unreadable)],
        "log": str(trained.log_dir),
    }


def wait_for_what_never_ends(ranks: Ranks, here: str) -> str:
    """What this rank says where a collective hangs, and one of the others is killed."""
    Path(here, str(ranks.rank)).touch()
    try:
        ranks._run(torch.empty(1), lambda group: [_NeverEnds()])
    except LostRankError as error:
        return str(error)
    return ""


class _NeverEnds:
    """A collective whose event never comes."""

    def is_completed(self) -> bool:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("devices", DEVICES)
def test_ranks_on_devices_give_the_bits_of_one_process_for_random_programs(devices: list[str]) -> None:
    by = ("test_devices_of_ranks:run", devices, "on_ranks:run_programs")
    assert compare(2, list(range(400, 405)), False, by=by) + compare(2, list(range(412, 417)), True, by=by) > 3


@pytest.mark.slow
@pytest.mark.parametrize("devices", DEVICES)
def test_hostile_sums_over_devices_have_the_bound_and_the_bits_of_the_whole(devices: list[str]) -> None:
    in_pieces = devices == MIXED
    assert call("test_devices_of_ranks:run", len(devices), devices, "on_ranks:run_sums", in_pieces) == [[], []]


@pytest.mark.slow
@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("name", ["convolution", pytest.param("gpt", marks=pytest.mark.long)])
def test_ranks_on_devices_train_and_audit_to_the_root_of_one_process(
    name: str, devices: list[str], tmp_path: Path
) -> None:
    job = kept_job(name)
    here = Trainer(job, tmp_path / "here").run()
    there = call("test_devices_of_ranks:train_and_audit", 2, devices, str(KEPT_JOBS / name), str(tmp_path))[0]
    assert there["roots"] == [here.checkpoint_root.hex()] * 2
    assert there["found"] == []
    audit = Auditor(job, tmp_path / "audit", log_dir=Path(there["log"]), verify_log=1.0).run()
    assert (audit.checkpoint_root, audit.findings, audit.unreadable) == (here.checkpoint_root, [], [])


@pytest.mark.long
def test_a_role_and_its_helper_on_devices_come_to_the_root_of_one_process(tmp_path: Path) -> None:
    """Rank 0 fails as it fetches a state, and goes on alone."""
    job = ["test_helped_runs:run_with_a_fault", str(tmp_path), True]
    (errors, roots, warnings), said = call("test_devices_of_ranks:run", 2, FOREIGN, *job)
    assert errors == ["the disk is gone"] and len(warnings) == 1
    assert roots == [test_helped_runs.alone("conv", tmp_path / "alone")]
    assert "could not end a step that all ranks execute" in said


@pytest.mark.slow
def test_a_process_whose_collective_hangs_ends_with_the_name_of_the_rank_that_was_killed(tmp_path: Path) -> None:
    started = start("test_devices_of_ranks:wait_for_what_never_ends", 2, str(tmp_path))
    (process, answer), (killed, _) = started
    try:
        while not (tmp_path / "0").exists():
            time.sleep(0.1)
        killed.kill()
        since = time.monotonic()
        assert answer.poll(60)
        _, said = answer.recv()
        process.join(60)
        assert time.monotonic() - since < seconds_to_stop() and process.exitcode == 0
    finally:
        end(started)
    assert json.loads(said).startswith(f"rank 1 (process {killed.pid} on ") and said.endswith(' to carry on"')


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
        # More processes than devices share them.
        ("cuda", 3, 2, "cuda:1"),
        ("cuda", 1, 0, "cuda"),
        ("cuda", None, 4, "cuda"),
        ("cpu", 1, 4, "cpu"),
    ],
)
def test_every_process_of_a_machine_has_a_card_of_its_own(
    chosen: str, local_rank: int | None, there: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    assert launch(local_rank).device(chosen) == device
