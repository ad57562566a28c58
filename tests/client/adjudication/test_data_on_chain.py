"""Loads of data of every kind, in memory, in a file or in a content store: what was stored is what the engine computes,
the reference reads and the contract says. Wrong openings are refused in HostileOpenings.t.sol and Loads.t.sol."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from random import Random
from typing import Any

import pytest
from roundlog.adjudication.adjudicate import encode
from roundlog.commitments import CHUNK_SIZE
from roundlog.data import files
from roundlog.descriptors import describe, encode_descriptor
from roundlog.spec import TrainingSpec
from roundlog.training.job import Job, JobLimits
from roundlog.training.trainer import Trainer
from tiebreak.contract.structs import ANYONE, ChunkOpening
from tiebreak.game.moves import Output, opening_arguments
from tiebreak.roles.engine import DisputeTrees
from tiebreak.segment_audits.stored_jobs import fetch_without_data, read_elsewhere
from tiebreak.store import FolderStore

from tests.client.adjudication.random_fields import column, elements_of, loading_job

VALUE = 0


def read_everywhere(directory: Path, room: Path, monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The job in a directory with its data in memory, left in their file, and left in a store."""
    held = Job.read(directory)
    with monkeypatch.context() as patched:
        patched.setattr(files, "HELD_BYTES", 0)
        left = Job.read(directory)
    store = FolderStore(room / "store")
    fetch_without_data(store, store.add_directory(directory), room / "far", warn=print, max_bytes=1 << 30)
    return [held, left, read_elsewhere(room / "far", JobLimits(), store)]


def asked(adjudicator: Any, spec: TrainingSpec, step: int, question: tuple[Any, ...], shown: list[ChunkOpening]) -> Any:
    setting = (*astuple(spec), ANYONE, ANYONE), step, spec.initial_state_root
    return adjudicator.functions.compute(setting, question, [astuple(one) for one in shown]).call()


@pytest.mark.slow_but("0")
@pytest.mark.parametrize("seed", range(3))
def test_an_element_is_what_was_stored_wherever_the_data_lie(
    adjudicator: Any, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(f"tiebreak data {seed}")
    rows = rng.choice([1, 2, 7, 256, 257, 300])
    columns = {name: column(rng, rows) for name in ("a", "b", "c")[: rng.randint(1, 3)]}
    loading_job(rng, columns).write(tmp_path / "job")
    jobs = read_everywhere(tmp_path / "job", tmp_path, monkeypatch)
    spec, program = jobs[0].spec, jobs[0].program
    step = rng.randrange(spec.steps)
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
            shown = list(opening_arguments(descriptor, materials[0].openings))
            question = encode_descriptor(descriptor), [], element
            assert asked(adjudicator, spec, step, question, shown) == [VALUE, expected % 2**64]
