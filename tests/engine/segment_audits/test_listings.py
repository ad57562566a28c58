"""The list of published checkpoints: what a run publishes, and what a stranger can write into a list."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from roundlog.segment_audits.segment import (
    CHECKPOINTS_FILE,
    Listing,
    ListingError,
    Publisher,
    read_address_of_job,
    read_listing,
    write_listing,
)
from roundlog.training.job import Job
from roundlog.training.options import RunOptions, StepEvent
from roundlog.training.trainer import Trainer

from tests.engine.kept_jobs import kept_job
from tests.engine.running.test_receipts import put
from tests.engine.segment_audits.audit_workers import listing_of_run


@pytest.fixture(scope="module")
def job() -> Job:
    return kept_job("logistic_sgd")


def test_a_run_publishes_as_it_goes_and_each_state_once(job: Job, tmp_path: Path) -> None:
    added: list[str] = []
    run = tmp_path / "run"

    def add(path: Path) -> str:
        added.append(path.name)
        return f"address-of-{path.name}"

    publisher = Publisher(job.spec, run, 2, add)
    seen: list[tuple[int, int, bool]] = []

    def on_step(event: StepEvent) -> None:
        listing = publisher.publish()
        assert read_listing(run / "log" / CHECKPOINTS_FILE, job.spec) == listing
        seen.append((event.step, len(listing.roots), listing.complete))

    result = Trainer(job, run, RunOptions(on_step=on_step)).run()
    # A step is told before the checkpoint after it is kept; two checkpoints make a list longer.
    assert [count for _, count, _ in seen] == [0, 0, 0, 0, 2, 2, 2, 2] and not any(c for *_, c in seen)
    last = publisher.publish()
    assert last.complete and list(last.roots) == result.state_roots and sorted(last.states) == [2]
    assert added == ["00000004.safetensors"]
    publisher.publish(mended=[1, 2])  # after the intervals that end with checkpoints 2 and 3, of which 2 is published
    assert added[1:] == ["00000004.safetensors"]
    assert listing_of_run(run, job.spec).roots == last.roots and len(listing_of_run(run, job.spec).states) == 3


HOSTILE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another format": put("format", value="x"),
    "another version": put("version", value=1),
    "another run": put("run_id", value="0" * 64),
    "a missing key": lambda plain: plain.pop("states"),
    "a root too short": put("state_roots", value=["12"]),
    "a root that is a number": put("state_roots", value=[12]),
    "too many roots": put("state_roots", value=["1" * 64] * 5),
    "states as a list": put("states", value=[]),
    "a state of nothing": put("states", "0", value="x"),
    "a state behind the end": put("states", "5", value="x"),
    "a state of other digits": put("states", "\u0663", value="x"),
    "an address that is a number": put("states", "1", value=1),
    "an address that controls the terminal": put("states", "1", value="\x1b[31m"),
    "an empty address": put("states", "1", value=""),
    "a job that is a number": put("job", value=1),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_list_of_another_form_is_refused(job: Job, tmp_path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    states = {2: "bafy", 3: "bafk"}
    write_listing(tmp_path, job.spec, Listing(roots=(b"\x11" * 32,) * 4, states=states, job="bafyjob"))
    path = tmp_path / CHECKPOINTS_FILE
    assert read_listing(path, job.spec).states == states
    assert read_listing(path, job.spec).job == read_address_of_job(path) == "bafyjob"
    plain = json.loads(path.read_text())
    change(plain)
    path.write_text(json.dumps(plain))
    with pytest.raises(ListingError, match="the list of checkpoints"):
        read_listing(path, job.spec)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[" * 10**5, b"\xff\xfe", b" " * 10**6, b'{"a": 1, "a": 2}', b"[]", b"null"]
)
def test_a_file_that_is_no_list_is_refused(job: Job, tmp_path: Path, content: bytes) -> None:
    (tmp_path / CHECKPOINTS_FILE).write_bytes(content)
    with pytest.raises(ListingError):
        read_listing(tmp_path / CHECKPOINTS_FILE, job.spec)
    with pytest.raises(ListingError):
        read_address_of_job(tmp_path / CHECKPOINTS_FILE)
    with pytest.raises(ListingError, match="does not exist"):
        read_listing(tmp_path / "nothing", job.spec)


def test_a_list_of_an_endless_run_is_not_read_into_memory(job: Job, tmp_path: Path) -> None:
    spec = replace(job.spec, steps=1 << 32, interval=1)
    with (tmp_path / CHECKPOINTS_FILE).open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ListingError, match=r"the list of checkpoints .*67108864"):
        read_listing(tmp_path / CHECKPOINTS_FILE, spec)
