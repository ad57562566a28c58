"""Jobs whose data lie in files: the same run as with the same rows in memory."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from roundlog.adjudication.adjudicate import DisputedStep, Tree, encode
from roundlog.adjudication.openings import Material, openings, prove
from roundlog.capture import Task
from roundlog.capture.task import Source
from roundlog.commitments import depth_of
from roundlog.data import FileField, files, windows
from roundlog.descriptors import Family, describe
from roundlog.execution.batches import Batches
from roundlog.program import Stored
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job, JobError, JobLimits, UnfitJobError, read_program
from roundlog.training.options import RunOptions
from roundlog.training.trainer import Trainer
from torch import nn

from tests.engine.tasks import small_task

WINDOW, STRIDE, ROWS = 9, 8, 40
TOKENS = np.random.default_rng(3).integers(0, 50, (ROWS - 1) * STRIDE + WINDOW + 5, dtype=np.uint16)
WEIGHTS = np.random.default_rng(4).standard_normal((ROWS, 300)).astype(np.float32)
SIGNED = np.random.default_rng(5).integers(-100, 100, (ROWS, 2), dtype=np.int8)


def task_of(tokens: Source, weights: Source, signed: Source) -> Task:
    torch.manual_seed(1)
    model = nn.ModuleList([nn.Embedding(50, 6), nn.Linear(6, 50), nn.Linear(300, 6), nn.Linear(2, 6)])

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        table, head, mix, two = model  # type: ignore[misc]
        tokens = batch["tokens"].long()
        x = table(tokens[:, :-1]) + (mix(batch["weights"]) + two(batch["signed"].float()))[:, None]
        return nn.functional.cross_entropy(head(x).flatten(0, 1), tokens[:, 1:].flatten())

    data = {"tokens": tokens, "weights": weights, "signed": signed}
    return small_task(model, loss, data, batch_size=4, steps=6, interval=3, seed=9)


def file_of(path: Path, array: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    path.write_bytes(array.tobytes())
    return np.memmap(path, array.dtype, "r", 0, array.shape)


@pytest.fixture
def left_in_files(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job that was read without holding its data."""
    monkeypatch.setattr(files, "HELD_BYTES", 0)
    monkeypatch.setattr("roundlog.training.run_cost.HELD_BYTES", 0)
    job = Job.read(shutil.copytree(written, tmp_path / "job"))
    assert all(isinstance(field, FileField) for field in job.dataset.values())
    return job


@pytest.fixture
def in_memory() -> Job:
    rows = torch.stack([torch.from_numpy(TOKENS[i * STRIDE :][:WINDOW].astype(np.int64)) for i in range(ROWS)])
    return Job.from_task(lambda: task_of(rows, torch.from_numpy(WEIGHTS), torch.from_numpy(SIGNED)), compare=False)


def test_the_run_is_that_of_the_same_rows_in_memory(left_in_files: Job, in_memory: Job, tmp_path: Path) -> None:
    assert left_in_files.spec.data_root != in_memory.spec.data_root
    trained = Trainer(left_in_files, tmp_path / "files").run()
    assert trained.state_roots == Trainer(in_memory, tmp_path / "memory").run().state_roots
    for number, options in enumerate((RunOptions(), RunOptions(micro_batches=4))):
        logs = tmp_path / "files" / "log"
        audited = Auditor(left_in_files, tmp_path / f"audit-{number}", options, log_dir=logs).run()
        assert audited.state_roots == trained.state_roots and not audited.findings


def test_every_load_is_proven_from_the_file_by_two_openings(left_in_files: Job) -> None:
    job, program = left_in_files, left_in_files.program
    kinds = {name: (kind.stored, kind.stride) for name, kind in program.fields.items()}
    assert kinds == {"tokens": (Stored.U16, STRIDE), "weights": (Stored.AS_READ, 300), "signed": (Stored.I8, 2)}
    fields = list(job.dataset.values())
    for q, node in enumerate(program.nodes):
        if node.op != "data":
            continue
        descriptor, slot = describe(program, q), node.attributes["slot"]
        assert descriptor.family is Family.DATA and isinstance(slot, int)
        material = Material(values={}, states=[], dataset=fields, schedule=job.schedule)
        for step in (0, 5):
            place = DisputedStep.of(job.spec, step)
            batch = Batches(job.dataset, job.spec).load(step)[slot].reshape(-1)
            for element in {0, 5, descriptor.elements - 1}:
                answer, chunks = openings(descriptor, element, place, material)
                assert isinstance(answer, int)
                assert encode(descriptor.dtype, answer) == batch[element : element + 1].numpy().tobytes()
                (opening,) = prove(chunks, material)
                assert opening.chunk.tree is Tree.FIELD and len(opening.above) == depth_of(len(fields))
                leaves = max(1, -(-fields[slot].nbytes // 1024))
                assert opening.holds(root=job.spec.data_root, leaves=leaves, tensors=len(fields))
                assert not opening.holds(root=job.spec.data_root, leaves=2 * leaves + 1, tensors=len(fields))


def test_a_damaged_file_of_data_is_refused(left_in_files: Job, tmp_path: Path) -> None:
    path = tmp_path / "job" / "data.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(JobError, match=r"the dataset in .* is not the one that its spec commits to"):
        Job.read(tmp_path / "job")
    path.write_bytes(whole[:-1])
    with pytest.raises(JobError, match="where its tensors need"):
        Job.read(tmp_path / "job")
    path.write_bytes(whole)
    with pytest.raises(UnfitJobError, match="bytes of memory"):
        Job.read(tmp_path / "job", JobLimits(memory_bytes=1000))


def test_a_field_of_which_no_contract_computes_an_element_is_refused(left_in_files: Job, tmp_path: Path) -> None:
    """Its trainer could put any number into a row, and nobody could show that it is wrong."""
    most = ((1 << 40) - 300) // 300 + 1
    for rows in (most, most + 1):
        spec = replace(left_in_files.spec, data_rows=rows)
        (tmp_path / "job" / "spec.json").write_text(spec.to_json())
        if rows == most:
            assert read_program(tmp_path / "job")[1] == spec
            continue
        found = (rows - 1) * 300 + 300
        with pytest.raises(UnfitJobError, match=f"the data field weights has {found} elements, more than the 2"):
            read_program(tmp_path / "job")
        with pytest.raises(UnfitJobError, match="the data field weights"):
            Job.read(tmp_path / "job")


def test_a_nan_in_a_file_is_refused_at_creation(tmp_path: Path) -> None:
    weights = WEIGHTS.copy()
    weights[-1, -1] = np.nan
    tokens = windows(TOKENS, window=WINDOW, stride=STRIDE)
    with pytest.raises(JobError, match="the data field weights has a NaN"):
        Job.from_task(lambda: task_of(tokens, file_of(tmp_path / "w", weights), SIGNED), compare=False)
