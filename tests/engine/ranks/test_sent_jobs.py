"""Jobs that come from another process: what is whole is taken, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from roundlog.capture import Task
from roundlog.training import rank_runs
from roundlog.training.job import Job, JobError, JobLimits
from roundlog.training.rank_runs import NAMES, Incoming, Outgoing, SentJobError
from torch import nn

from tests.engine.tasks import linear_task


@pytest.fixture(scope="module")
def job() -> Job:
    return Job.from_task(linear_task)


def arrived(pieces: list[bytes], manifest: bytes, job: Job, place: Path) -> Job:
    incoming = Incoming(manifest, job.spec.run_id.hex(), place)
    for piece in pieces:
        incoming.take(piece)
    return incoming.job(JobLimits())


def cut(content: bytes, size: int) -> list[bytes]:
    return [content[i : i + size] for i in range(0, len(content), size)]


@pytest.mark.parametrize("size", [None, 100, 1 << 30])
def test_a_job_comes_as_it_was_sent_however_it_is_cut(job: Job, tmp_path: Path, size: int | None) -> None:
    outgoing = Outgoing(job, tmp_path / "sent")
    pieces = list(outgoing.pieces())
    assert all(0 < len(piece) <= rank_runs.PIECE for piece in pieces)
    if size is not None:
        pieces = cut(b"".join(pieces), size)
    found = arrived(pieces, outgoing.manifest, job, tmp_path / "come")
    assert found.spec == job.spec and found.program == job.program
    job.write(tmp_path / "written")
    for name in NAMES:
        assert (tmp_path / "come" / name).read_bytes() == (tmp_path / "written" / name).read_bytes()


def test_data_in_a_file_are_not_copied_to_be_sent(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(1).standard_normal((64, 3)).astype("f4"))
    model = nn.Linear(3, 1)
    made = Job.from_task(
        lambda: Task(
            model=model,
            loss=lambda model, batch: model(batch["x"]).square().mean(),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            dataset={"x": np.load(tmp_path / "x.npy", mmap_mode="r")},
            batch_size=4,
            steps=2,
            interval=1,
            seed=1,
        )
    )
    outgoing = Outgoing(made, tmp_path / "sent")
    found = arrived(list(outgoing.pieces()), outgoing.manifest, made, tmp_path / "come")
    assert found.spec == made.spec
    assert not (tmp_path / "sent" / "data.safetensors").exists()


def changed(**sizes: object) -> Callable[[dict[str, object]], object]:
    def change(manifest: dict[str, object]) -> object:
        assert isinstance(manifest["sizes"], dict)
        return manifest | {"sizes": manifest["sizes"] | {f"{name}.json": size for name, size in sizes.items()}}

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: [], "does not name the files"),
        (lambda one: one | {"sizes": {}}, "does not name the files"),
        (lambda one: one | {"sizes": one["sizes"] | {"../keys": 1}}, "does not name the files"),
        (lambda one: one | {"run": "00" * 32}, "another run than was announced"),
        (lambda one: one | {"more": "x" * 5000}, "not JSON of the size allowed"),
        (changed(program=-1), "gives a file no size"),
        (changed(program=0), "gives a file no size"),
        (changed(program=True), "gives a file no size"),
        (changed(program=1.5), "gives a file no size"),
        (changed(program=1 << 62), "more than the 17179869184 allowed"),
    ],
)
def test_a_manifest_that_is_none_is_refused_before_anything_is_written(
    job: Job, tmp_path: Path, change: Callable[[object], object], said: str
) -> None:
    manifest = json.loads(Outgoing(job, tmp_path / "sent").manifest)
    with pytest.raises(SentJobError, match=said):
        Incoming(json.dumps(change(manifest)).encode(), job.spec.run_id.hex(), tmp_path / "come")
    assert not (tmp_path / "come").exists()


@pytest.mark.parametrize("manifest", [b"", b"{", b"\xff" * 100, b"[" * 4000])
def test_a_manifest_that_is_no_json_is_refused(job: Job, tmp_path: Path, manifest: bytes) -> None:
    with pytest.raises(SentJobError, match="not JSON of the size allowed"):
        Incoming(manifest, job.spec.run_id.hex(), tmp_path)


def test_a_job_without_room_on_the_disk_is_refused(job: Job, tmp_path: Path) -> None:
    manifest = json.loads(Outgoing(job, tmp_path / "sent").manifest)
    manifest["sizes"]["data.safetensors"] = 1 << 60
    with pytest.raises(SentJobError, match="has room for: make room there"):
        Incoming(json.dumps(manifest).encode(), job.spec.run_id.hex(), tmp_path / "come", most_bytes=1 << 62)


def test_bytes_that_are_missing_too_many_bent_or_anothers_are_no_job(job: Job, tmp_path: Path) -> None:
    outgoing = Outgoing(job, tmp_path / "sent")
    content = b"".join(outgoing.pieces())
    other = Outgoing(Job.from_task(lambda: linear_task(seed=6)), tmp_path / "other")
    for number, (end, said) in enumerate([(-1, "as a whole"), (1, "as a whole"), (len(content) // 2, "as a whole")]):
        with pytest.raises(SentJobError, match=said):
            arrived([content[:end]], outgoing.manifest, job, tmp_path / str(number))
    with pytest.raises(SentJobError, match="as a whole"):
        arrived([], outgoing.manifest, job, tmp_path / "nothing")
    with pytest.raises(SentJobError, match="more bytes have come"):
        arrived([content, b"x"], outgoing.manifest, job, tmp_path / "more")
    with pytest.raises(JobError):
        bent = content[:-1] + bytes([content[-1] ^ 1])
        arrived([bent], outgoing.manifest, job, tmp_path / "bent")
    claimed = json.dumps(json.loads(other.manifest) | {"run": job.spec.run_id.hex()}).encode()
    with pytest.raises(SentJobError, match="another job has come"):
        arrived(list(other.pieces()), claimed, job, tmp_path / "another's")


def test_a_file_that_vanishes_while_it_is_sent_is_an_error(job: Job, tmp_path: Path) -> None:
    outgoing = Outgoing(job, tmp_path / "sent")
    pieces = outgoing.pieces()
    next(pieces)
    (tmp_path / "sent" / "initial.safetensors").unlink()
    with pytest.raises(OSError, match="initial"):
        list(pieces)
