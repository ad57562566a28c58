"""Texts of programs for the tests: a small one to be spoiled, and one in which every operator occurs."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from roundlog.operators import REGISTRY, check
from roundlog.program import DType, Node, Program, ProgramError, TensorType, from_json, to_json

from tests.engine.operators.operator_cases import CASES

Document = dict[str, Any]
F32, I64 = DType.F32, DType.I64


def whole() -> Program:
    """A valid program in which every operator of the registry occurs."""
    nodes: list[Node] = []
    loads: list[int] = []

    def add(op: str, inputs: tuple[int, ...], attributes: dict[str, Any], kind: TensorType) -> int:
        kind = REGISTRY[op].infer([nodes[i].type for i in inputs], attributes, kind)
        nodes.append(Node(op, inputs, attributes, kind, f"net.py:{len(nodes)}"))
        return len(nodes) - 1

    scalar = TensorType((), F32)
    add("data", (), {"slot": 0}, TensorType((2, 3), I64))
    add("schedule", (), {"slot": 0}, scalar)
    add("constant", (), {"bits": (0x3F800000, 0)}, TensorType((2,), F32))
    add("iota", (), {"start": 1, "step": 2}, TensorType((4,), I64))
    add("uniform", (), {"stream": 5}, TensorType((2, 2), F32))
    for op, generate in sorted(CASES.items()):
        if op not in ("loss", "store"):
            case = next(case for case in generate(Random(op)) if 0 < case.inputs[0].numel() < 99 or len(nodes) > 0)
            inputs = []
            for x in case.inputs:
                kind = TensorType(tuple(x.shape), DType.of(x.dtype))
                inputs.append(add("state", (), {"slot": len(loads)}, kind))
                loads.append(inputs[-1])
            add(op, tuple(inputs), dict(case.attributes), scalar)
    add("loss", (1,), {}, scalar)
    for slot, value in enumerate(loads):
        add("store", (value,), {"slot": slot}, scalar)
    return Program(
        nodes=tuple(nodes),
        state_names=tuple(f"state.{slot}" for slot in range(len(loads))),
        data_names=("x",),
        schedule_names=("rate",),
        batch_size=2,
    )


WHOLE = whole()
TEXT = to_json(WHOLE)


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
