"""Loads of data of every kind, in memory, in a file or in a content store: what was stored is what the engine computes,
the reference reads and the contract says. Wrong openings are refused in HostileOpenings.t.sol and Loads.t.sol."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from roundlog.adjudication.adjudicate import encode
from roundlog.capture.builder import Builder
from roundlog.commitments import CHUNK_SIZE, state_root, tensor_root
from roundlog.data import Field, data_tree, field_of, files, windows
from roundlog.descriptors import describe, encode_descriptor, program_root
from roundlog.program import DType, Program, Stored, TensorType
from roundlog.randomness import row_of_position
from roundlog.spec import TrainingSpec
from roundlog.training.job import Job, JobLimits
from roundlog.training.trainer import Trainer
from tiebreak.contract.structs import ANYONE
from tiebreak.roles.engine import DisputeTrees
from tiebreak.segment_audits import fetch_without_data, read_job
from tiebreak.store import FolderStore
from tiebreak.strategy import Output, opening_arguments

VALUE = 0

KINDS: list[list[tuple[str, tuple[int, ...], int]]] = [
    [("<f4", (5, 1, 7), 0), ("?", (1025,), 0), ("<i8", (3,), 2)],
    [("u1", (), 0), ("i1", (1023,), 2047), ("<i2", (513,), 512)],
    [("<u2", (1,), 1), ("<i4", (257,), 258), ("<f4", (256,), 1)],
]
"""Fields of three jobs: how numbers are stored, the shape of a row, and the elements from one window of a stream to the
next; 0 for rows behind each other."""


@dataclass(frozen=True)
class Column:
    """A field as it is stored: row i begins with element i * stride."""

    elements: NDArray[Any]
    shape: tuple[int, ...]
    stride: int
    field: Field

    @property
    def items(self) -> int:
        return prod(self.shape)

    def stored(self, row: int, item: int) -> int:
        """An element as it is read: FP32 as its pattern."""
        elements = self.elements.view("<u4") if self.elements.dtype.kind == "f" else self.elements
        return int(elements[row * self.stride + item])

    def borders(self, row: int) -> list[int]:
        """Items of a row on both sides of the borders of the field's chunks."""
        per_chunk, first = CHUNK_SIZE // self.elements.itemsize, row * self.stride
        found = range(-(-first // per_chunk) * per_chunk - first, self.items + 1, per_chunk)
        return [item for border in found for item in (border - 1, border) if 0 <= item < self.items]


def column(kind: str, shape: tuple[int, ...], stride: int, rows: int) -> Column:
    """A field of random bits; finite numbers and infinities where it is of FP32."""
    dtype, numbers, items = np.dtype(kind), np.random.default_rng(rows), prod(shape)
    count = (rows - 1) * (stride or items) + items + (stride > 1)  # a last window that is not whole
    elements = np.frombuffer(numbers.bytes(count * dtype.itemsize), f"<u{dtype.itemsize}").copy()
    if dtype.kind == "f":
        elements[elements & 0x7FFFFFFF > 0x7F800000] &= 0x807FFFFF
    elements = (elements & 1).astype("?") if dtype.kind == "b" else elements.view(dtype)
    field = windows(elements, window=items, stride=stride) if stride else field_of("x", elements.reshape(rows, *shape))
    return Column(elements, shape, stride or items, field)


def loading_job(rng: Random, fields: dict[str, Field], rows: int) -> Job:
    """A job whose steps load a batch of all fields, in another order than that of the fields, and change nothing."""
    batch, steps = min(rows, 5), 4
    b = Builder()
    state = b.source_op("state", TensorType((1,), DType.F32), slot=0)
    for slot, field in rng.sample(list(enumerate(fields.values())), len(fields)):
        attributes: dict[str, int | str] = {"slot": slot}
        if field.kind.stride != field.kind.row.numel:
            attributes["stride"] = field.kind.stride
        if field.kind.stored is not Stored.AS_READ:
            attributes["stored"] = field.kind.stored.name.lower()
        b.source_op("data", TensorType((batch, *field.kind.row.shape), field.kind.row.dtype), **attributes)
    b.op("loss", b.constant(0.5, DType.F32))
    b._add("store", (state,), {"slot": 0}, b.type(state))
    program = Program(
        nodes=tuple(b.nodes), state_names=("s",), data_names=tuple(fields), schedule_names=("rate",), batch_size=batch
    )
    initial, schedule = {"s": torch.zeros(1)}, torch.ones(steps, 1)
    spec = TrainingSpec(
        steps=steps,
        interval=steps,
        program_root=program_root(program),
        operator_count=len(program.nodes),
        initial_state_root=state_root(initial.values()),
        state_count=1,
        data_root=data_tree(fields.values()).root,
        data_rows=rows,
        batch_size=batch,
        schedule_root=tensor_root(schedule),
        seed=2**64 - 1,
    )
    return Job(program=program, spec=spec, initial=initial, schedule=schedule, dataset=fields)


def read_everywhere(directory: Path, room: Path, monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The job in a directory with its data in memory, left in their file, and left in a store."""
    held = Job.read(directory)
    with monkeypatch.context() as patched:
        patched.setattr(files, "HELD_BYTES", 0)
        left = Job.read(directory)
    store = FolderStore(room / "store")
    fetch_without_data(store, store.add_directory(directory), room / "far", warn=print, max_bytes=1 << 30)
    return [held, left, read_job(room / "far", JobLimits(), lambda: store)]


def elements_of(rng: Random, column: Column, spec: TrainingSpec, step: int) -> dict[int, int]:
    """Elements of a batch of a column, by their number, as they are read: the first, the last, one somewhere, and some
    on the borders of chunks."""
    found = {}
    for sample in {0, spec.batch_size - 1, rng.randrange(spec.batch_size)}:
        row = row_of_position(spec.seed, step * spec.batch_size + sample, spec.data_rows)
        for item in {0, column.items - 1, rng.randrange(column.items), *column.borders(row)[:4]}:
            found[sample * column.items + item] = column.stored(row, item)
    return found


@pytest.mark.slow_but("7-*")
@pytest.mark.parametrize(("rows", "kinds"), [*zip((7, 1, 257), KINDS, strict=True)])
def test_an_element_is_what_was_stored_wherever_the_data_lie(
    adjudicator: Any,
    rows: int,
    kinds: list[tuple[str, tuple[int, ...], int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = Random(rows)
    columns = {name: column(*kind, rows) for name, kind in zip("abc", kinds, strict=True)}
    loading_job(rng, {name: one.field for name, one in columns.items()}, rows).write(tmp_path / "job")
    jobs = read_everywhere(tmp_path / "job", tmp_path, monkeypatch)
    spec, program, step = jobs[0].spec, jobs[0].program, 1
    setting = (*astuple(spec), ANYONE, ANYONE), step, spec.initial_state_root
    parties = [
        DisputeTrees(job, run, Trainer(job, run).run().state_roots)
        for number, job in enumerate(jobs)
        for run in [tmp_path / f"run {number}"]
    ]
    for q, node in enumerate(program.nodes):
        if node.op != "data":
            continue
        slot = node.attributes["slot"]
        assert isinstance(slot, int)
        descriptor, stored = describe(program, q), columns[program.data_names[slot]]
        outputs: list[Output] = [party.tree((0, step, q)) for party in parties]  # type: ignore[misc]
        size = descriptor.dtype.itemsize
        for element, expected in elements_of(rng, stored, spec, step).items():
            chunk, place = divmod(element * size, CHUNK_SIZE)
            materials = [output.material(element) for output in outputs]
            assert all(one == materials[0] for one in materials) and materials[0].answer == expected
            for output in outputs:
                assert output.chunk(chunk)[place : place + size] == encode(descriptor.dtype, expected)
            openings = [astuple(one) for one in opening_arguments(descriptor, materials[0].openings)]
            question = encode_descriptor(descriptor), [], element
            assert adjudicator.functions.compute(setting, question, openings).call() == [VALUE, expected % 2**64]
