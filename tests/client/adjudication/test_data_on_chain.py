"""Loads of data: what was stored, what the engine computes, what its reference reads and what the contract says. Fields
are of every kind, and lie in memory, in a file or in a content store. Openings of anything else are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from roundlog.adjudication.adjudicate import encode
from roundlog.commitments import CHUNK_SIZE, BlockTree
from roundlog.data import Field, data_tree, files, summarised
from roundlog.descriptors import describe, encode_descriptor
from roundlog.program import Program
from roundlog.spec import TrainingSpec
from roundlog.training.job import Job, JobLimits
from roundlog.training.trainer import Trainer
from tiebreak.contract.structs import ANYONE, ChunkOpening
from tiebreak.game.moves import Output, opening_arguments
from tiebreak.roles.engine import DisputeTrees
from tiebreak.segment_audits.stored_jobs import fetch_without_data, read_elsewhere
from tiebreak.store import FolderStore
from web3.exceptions import ContractLogicError

from tests.client.adjudication.random_fields import Column, column, elements_of, loading_job

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


def loads(program: Program, columns: dict[str, Column]) -> Iterator[tuple[int, int, Column]]:
    """(operator, field, column) of every load of data."""
    for q, node in enumerate(program.nodes):
        if node.op == "data":
            slot = node.attributes["slot"]
            assert isinstance(slot, int)
            yield q, slot, columns[program.data_names[slot]]


def asked(adjudicator: Any, spec: TrainingSpec, step: int, question: tuple[Any, ...], shown: list[ChunkOpening]) -> Any:
    setting = (*astuple(spec), ANYONE, ANYONE), step, spec.initial_state_root
    return adjudicator.functions.compute(setting, question, [astuple(one) for one in shown]).call()


@pytest.mark.slow_but("0")
@pytest.mark.parametrize("seed", range(5))
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
    for q, slot, stored in loads(program, columns):
        descriptor = describe(program, q)
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
        fields = list(jobs[0].dataset.values())
        for why, wrong in wrong_openings(rng, *shown, fields, slot):
            with pytest.raises(ContractLogicError):
                pytest.fail(f"{why}: {asked(adjudicator, spec, step, question, wrong)}")


def wrong_openings(
    rng: Random, root: ChunkOpening, chunk: ChunkOpening, fields: list[Field], slot: int
) -> Iterator[tuple[str, list[ChunkOpening]]]:
    """Openings that a liar could show in place of those of a field's root and of a chunk of it, and what they are."""
    field, tree = fields[slot], summarised(fields[slot]).tree
    for index in {chunk.chunk - 1, chunk.chunk + 1, rng.randrange(tree.count)} - {chunk.chunk}:
        if 0 <= index < tree.count:
            other = opened(field, tree, index)
            yield "another chunk", [root, other]
            yield "another chunk by this number", [root, replace(other, chunk=chunk.chunk)]
            yield "this chunk by another number", [root, replace(chunk, chunk=index)]
    if chunk.proof:
        yield "a proof without its top", [root, replace(chunk, proof=chunk.proof[:-1])]
        yield "a proof without its bottom", [root, replace(chunk, proof=chunk.proof[1:])]
    yield "a longer proof", [root, replace(chunk, proof=(*chunk.proof, bytes(32)))]
    yield "a chunk cut short", [root, replace(chunk, data=chunk.data[:-1])]
    yield "a chunk filled up", [root, replace(chunk, data=chunk.data + b"\0")]
    bent = bytearray(chunk.data)
    bent[rng.randrange(len(bent))] ^= 1 << rng.randrange(8)
    yield "a bit of a chunk", [root, replace(chunk, data=bytes(bent))]
    yield "a chunk of the padding", [root, replace(chunk, chunk=chunk.chunk + (1 << len(chunk.proof)))]
    yield "no root", [chunk]
    yield "no chunk", [root]
    above = data_tree(fields)
    for number, another in enumerate(fields):
        if number != slot:
            of_another = summarised(another).tree.root
            shown = replace(root, chunk=number, data=of_another, proof=tuple(above.proof(number)))
            yield "another field", [shown, chunk]
            yield "another field by this number", [replace(shown, chunk=slot), chunk]
            yield "another field by this proof", [replace(root, data=of_another), chunk]
            yield "a chunk of another field", [root, opened(another, summarised(another).tree, 0)]


def opened(field: Field, tree: BlockTree, index: int) -> ChunkOpening:
    """The honest opening of a chunk of a field."""
    start = index * CHUNK_SIZE
    data = bytes(field.read(start, min(CHUNK_SIZE, field.nbytes - start)))
    return ChunkOpening(input=1, chunk=index, data=data, proof=tuple(tree.proof(index, field.read)))
