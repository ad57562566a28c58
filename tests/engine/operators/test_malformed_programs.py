"""A program is a stranger's text. Whatever is wrong with it ends in one ProgramError that names the place, at once, and
before anything is allocated."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog.execution.fusion import peak_bytes
from roundlog.operators import REGISTRY, check
from roundlog.program import DType, Program, ProgramError, TensorType, from_json, to_json

Document = dict[str, Any]
F32, I64 = DType.F32, DType.I64


VECTORS = Path(__file__).resolve().parents[2] / "vectors" / "descriptors.json"
TEXT = json.loads(VECTORS.read_text())["program"].encode()
WHOLE = from_json(TEXT)
"""A valid program in which every operator of the registry occurs."""


def small() -> Document:
    """state 0 f32[2, 3], matmul with state 1 f32[3, 2], its sum as the loss, both states stored."""
    return {
        "format": "tiebreak-program",
        "version": 1,
        "batch_size": 2,
        "states": ["w", "v"],
        "data": ["x"],
        "schedule": ["rate"],
        "nodes": [
            ["state", [], {"slot": 0}, "f32", [2, 3]],
            ["state", [], {"slot": 1}, "f32", [3, 2]],
            ["data", [], {"slot": 0}, "i64", [2]],
            ["matmul", [0, 1], {}, "f32", [2, 2]],
            ["sum", [3], {"dims": [0, 1]}, "f32", [1, 1]],
            ["reshape", [4], {"shape": []}, "f32", []],
            ["loss", [5], {}, "f32", []],
            ["store", [0], {"slot": 0}, "f32", [2, 3]],
            ["store", [1], {"slot": 1}, "f32", [3, 2]],
        ],
        "sources": ["net.py:1"] * 9,
    }


def canonical(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def load(text: bytes) -> Program:
    program = from_json(text)
    check(program)
    return program


def refused(text: bytes) -> str:
    """The one sentence with which the text is refused."""
    with pytest.raises(ProgramError) as caught:
        load(text)
    message = str(caught.value)
    assert message and message.isprintable() and len(message) < 1000, message[:2000]
    return message


def test_the_program_of_every_operator_is_read_and_written_back_to_the_same_text() -> None:
    assert load(TEXT) == WHOLE
    assert to_json(load(TEXT)) == TEXT
    assert {node.op for node in WHOLE.nodes} == set(REGISTRY)
    assert load(canonical(small())).nodes[3].type == TensorType((2, 2), DType.F32)


def _set(*path: Any, to: Any) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        target: Any = document
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = to

    return change


def _node(index: int, part: int, to: Any) -> Callable[[Document], None]:
    return _set("nodes", index, part, to=to)


def _insert(index: int, node: list[Any]) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        document["nodes"].insert(index, node)
        document["sources"].insert(index, "net.py:9")

    return change


OP, INPUTS, ATTRIBUTES, DTYPE, SHAPE = range(5)

MALFORMED: list[tuple[str, Callable[[Document], None], str]] = [
    ("an operator reads itself", _node(3, INPUTS, [0, 3]), "operator 3 (matmul)"),
    ("an operator reads a later one", _node(3, INPUTS, [0, 4]), "operator 3 (matmul)"),
    ("an input is a truth value", _node(3, INPUTS, [0, True]), "operator 3 (matmul)"),
    ("the operator is unknown", _node(3, OP, "matmull"), "operator 3 (matmull, net.py:1)"),
    ("the operator has a terminal code in its name", _node(3, OP, "\x1b[2J"), "operator 3"),
    (
        "the declared shape is wrong",
        _node(3, SHAPE, [2, 3]),
        "operator 3 (matmul, net.py:1): declared as f32[2, 3], but computes f32[2, 2]",
    ),
    ("the dtype is unknown", _node(3, DTYPE, "f64"), "operator 3 (matmul)"),
    ("a size is negative", _node(3, SHAPE, [2, -2]), "operator 3 (matmul)"),
    ("a size is beyond int64", _node(3, SHAPE, [2**63, 1]), "operator 3 (matmul)"),
    ("the shape is huge", _node(0, SHAPE, [2**30, 2**30]), "operator 0 (state)"),
    ("the shape has too many axes", _node(0, SHAPE, [1] * 17), "operator 0 (state)"),
    ("the attributes are a list", _node(4, ATTRIBUTES, [["dims", [0, 1]]]), "operator 4 (sum)"),
    ("an attribute is missing", _node(4, ATTRIBUTES, {}), "operator 4 (sum, net.py:1)"),
    ("an attribute is a number for a list", _node(4, ATTRIBUTES, {"dims": 0}), "operator 4 (sum, net.py:1)"),
    ("an attribute is a truth value for a number", _node(0, ATTRIBUTES, {"slot": False}), "state"),
    ("an axis is beyond the last", _node(4, ATTRIBUTES, {"dims": [0, 2]}), "operator 4 (sum, net.py:1)"),
    ("an axis comes twice", _node(4, ATTRIBUTES, {"dims": [0, 0]}), "operator 4 (sum, net.py:1)"),
    ("an integer is beyond int64", _node(4, ATTRIBUTES, {"dims": [2**63]}), "operator 4"),
    ("an attribute is NaN", _node(4, ATTRIBUTES, {"dims": float("nan")}), "NaN"),
    ("an operator is too long", _set("nodes", 3, to=["matmul", [0, 1], {}, "f32", [2, 2], 0]), "operator 3"),
    ("there are no operators", _set("nodes", to=[]), "operators"),
    ("a source line is missing", _set("sources", to=["net.py:1"] * 8), "source lines"),
    ("a source line has a line break", _set("sources", 3, to="a\nb"), "operator 3 (matmul)"),
    ("a source line has half a character", _set("sources", 3, to="\ud800"), "operator 3 (matmul)"),
    ("a source line is very long", _set("sources", 3, to="a" * 2000), "operator 3 (matmul)"),
    ("the format is another", _set("format", to="onnx"), "format"),
    ("the version is unknown", _set("version", to=2), "version 2"),
    ("there is a key too many", _set("extra", to=1), "extra"),
    ("the batch is another than the data's", _set("batch_size", to=3), "data field x"),
    ("a state has no reader", _set("states", to=["w", "v", "u"]), "state slots"),
    ("two states have one name", _set("states", to=["w", "w"]), "states"),
    ("a state's name has a line break", _set("states", to=["w", "a\nb"]), "states"),
    ("a slot is read twice", _node(1, ATTRIBUTES, {"slot": 0}), "state slots"),
    ("a slot is the numeral of a number", _node(0, ATTRIBUTES, {"slot": "0"}), "state slots"),
    ("a data slot is read twice", _insert(3, ["data", [], {"slot": 0}, "i64", [2]]), "data slots"),
    ("a data field is a scalar", _node(2, SHAPE, []), "data field x"),
    ("a schedule column is beyond the last", _insert(3, ["schedule", [], {"slot": 1}, "f32", []]), "schedule"),
    ("the stores are out of order", _set("nodes", 7, to=["store", [1], {"slot": 1}, "f32", [3, 2]]), "store"),
    ("a store stands in the middle", _insert(3, ["store", [0], {"slot": 0}, "f32", [2, 3]]), "store"),
    ("a state is stored as another shape", _set("nodes", 7, to=["store", [1], {"slot": 0}, "f32", [3, 2]]), "state w"),
    ("there is no loss", _node(6, OP, "neg"), "loss"),
    ("the loss is no scalar", _set("nodes", 6, to=["loss", [4], {}, "f32", [1, 1]]), "loss"),
    (
        "a constant is another NaN",
        _insert(3, ["constant", [], {"bits": [0x7FC00001]}, "f32", []]),
        "operator 3 (constant",
    ),
    (
        "a constant of BF16 is another NaN",
        _insert(3, ["constant", [], {"bits": [0xFFC0]}, "bf16", []]),
        "a NaN other than 0x7fc0:",
    ),
    (
        "a constant of FP16 is another NaN",
        _insert(3, ["constant", [], {"bits": [0x7C01]}, "f16", []]),
        "a NaN other than 0x7e00:",
    ),
    ("a constant of BF16 does not fit", _insert(3, ["constant", [], {"bits": [0x10000]}, "bf16", []]), "does not fit"),
    ("random numbers are BF16", _insert(3, ["uniform", [], {"stream": 1}, "bf16", [3]]), "operator 3"),
    ("a constant does not fit", _insert(3, ["constant", [], {"bits": [2**32]}, "f32", []]), "operator 3 (constant"),
    ("a constant has too few items", _insert(3, ["constant", [], {"bits": [1, 2]}, "f32", [3]]), "operator 3"),
    ("a constant is too large", _insert(3, ["constant", [], {"bits": [0] * 65537}, "f32", [65537]]), "operator 3"),
    ("iota runs out of int64", _insert(3, ["iota", [], {"start": 2**62, "step": 2**62}, "i64", [3]]), "operator 3"),
    ("a shape of 65,536 huge sizes", _node(5, ATTRIBUTES, {"shape": [2**62] * 65536}), "operator 5 (reshape"),
]


@pytest.mark.parametrize(("what", "change", "named"), MALFORMED, ids=[row[0] for row in MALFORMED])
def test_a_program_is_refused_where(what: str, change: Callable[[Document], None], named: str) -> None:
    document = small()
    change(document)
    text = canonical(document)
    start = time.process_time()
    assert named in refused(text)
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe{",
        b"[]",
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b"1" * 100_000,
        b'{"format":"tiebreak-program","version":1}',
        b"\xef\xbb\xbf" + TEXT,
        TEXT.decode().encode("utf-16"),
        TEXT + b"\n",
        TEXT.replace(b",", b", ", 1),
        TEXT[:-1],
        TEXT.replace(b'"version":1', b'"version":1,"version":1'),
        TEXT.replace(b'"version":1', b'"version":01'),
        TEXT.replace(b'"version":1', b'"version":1.0'),
        TEXT.replace(b'"slot":0', b'"slot":-0'),
        TEXT.replace(b'"images"', b'"\\u0069mages"', 1),
    ],
    ids=range(17),
)
def test_a_text_that_is_not_exactly_a_program_in_canonical_form_is_refused(text: bytes) -> None:
    start = time.process_time()
    refused(text)
    assert time.process_time() - start < 1.0


def test_checking_a_program_of_terabytes_allocates_none_of_them() -> None:
    side = 2**20
    huge = "f32", [side, side]
    nodes: list[list[Any]] = [
        ["state", [], {"slot": 0}, *huge],
        ["matmul", [0, 0], {}, *huge],
        ["constant", [], {"bits": [0]}, *huge],
        ["add", [1, 2], {}, *huge],
        ["exp", [3], {}, *huge],
        ["uniform", [], {"stream": 0}, *huge],
        ["iota", [], {"start": 0, "step": 1}, "i64", [side * side]],
        ["constant", [], {"bits": [0]}, "f32", []],
        ["loss", [7], {}, "f32", []],
        ["store", [4], {"slot": 0}, *huge],
    ]
    document = {**small(), "nodes": nodes, "sources": [""] * len(nodes), "states": ["w"], "data": [], "schedule": []}
    text = canonical(document)
    tracemalloc.start()
    try:
        program = load(text)
        assert peak_bytes(program) > 2**42
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_no_operator_runs_a_kernel_to_infer_a_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: object, **kwargs: object) -> None:
        raise AssertionError("a tensor was made")

    for name in ("empty", "zeros", "ones", "tensor", "arange", "from_numpy"):
        monkeypatch.setattr(torch, name, stop)
    load(TEXT)
