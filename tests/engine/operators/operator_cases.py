"""Inputs for every operator, by name: those of the golden vectors in conformance/vectors, and others drawn from them,
with sizes and parameters changed as far as types allow. A new operator needs vectors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from roundlog.definitions import Family, of_family
from roundlog.operators import REGISTRY, Inexact, Source
from roundlog.program import DType, ProgramError, TensorType

from tests.engine.operators import operands as of
from tests.engine.operators.operands import booleans, floats, integers

VECTORS = Path(__file__).resolve().parents[3] / "conformance" / "vectors"
INDEX_INPUT = ("gather", "take", "scatter_add")
FUNCTIONS = {one.name for one in of_family(Family.FUNCTION)}
MOST = 400
"""Elements of a tensor: the oracle computes them one by one. Of a function's, a twentieth."""


@dataclass(frozen=True)
class Case:
    inputs: list[torch.Tensor]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GoldenCase(Case):
    """A vector: also the encodings of the output, its dtype and shape, the bits that FP32 is rounded to, and the seed
    and the step of a run, which `uniform` reads."""

    words: tuple[int, ...] = ()
    kind: TensorType = field(default_factory=lambda: TensorType((), DType.F32))
    bits: int = 32
    seed: int = 0
    step: int = 0


def _tensor(plain: dict[str, Any]) -> torch.Tensor:
    dtype = DType(plain["dtype"])
    words = np.array([int(word, 16) for word in plain["words"]], np.uint64).astype(f"<u{dtype.itemsize}")
    held = torch.from_numpy(words.view(f"<i{dtype.itemsize}"))
    return (held.bool() if dtype == DType.BOOL else held.view(dtype.torch_dtype)).reshape(plain["shape"])


@cache
def golden(name: str) -> tuple[GoldenCase, ...]:
    """The vectors of an operator, in all formats."""
    found = []
    for plain in json.loads((VECTORS / f"{name}.json").read_text())["cases"]:
        output = plain["output"]
        found.append(
            GoldenCase(
                [_tensor(x) for x in plain["inputs"]],
                {key: tuple(x) if isinstance(x, list) else x for key, x in plain["parameters"].items()},
                tuple(int(word, 16) for word in output["words"]),
                TensorType(tuple(output["shape"]), DType(output["dtype"])),
                plain.get("rounding_bits", 32),
                plain.get("seed", 0),
                plain.get("step", 0),
            )
        )
    return tuple(found)


def _shape(rng: Random, shape: of.Shape, rate: float) -> of.Shape:
    """Some axes changed, added or dropped."""
    sizes = [rng.randrange(4) if rng.random() < rate else size for size in shape]
    if sizes and rng.random() < rate / 4:
        sizes.pop(rng.randrange(len(sizes)))
    if rng.random() < rate / 4:
        sizes.insert(rng.randrange(len(sizes) + 1), rng.randrange(3))
    return tuple(sizes)


def _attribute(rng: Random, value: Any, rate: float) -> Any:
    if isinstance(value, tuple):
        whole = tuple(_attribute(rng, item, rate) for item in value)
        return rng.choice((whole[:-1], (*whole, rng.randrange(4)))) if rng.random() < rate / 2 else whole
    return rng.randrange(4) if rng.random() < rate else value


def _drawn(name: str, rng: Random, kinds: list[TensorType], attributes: Mapping[str, Any]) -> list[torch.Tensor] | None:
    """Data of these types; None if no index can be in range."""
    inputs: list[torch.Tensor] = []
    for position, kind in enumerate(kinds):
        if kind.dtype.is_float:
            inputs.append(floats(rng, kind.shape, rng.choice(of.FINITE)).to(kind.dtype.torch_dtype))
        elif kind.dtype == DType.BOOL:
            inputs.append(booleans(rng, kind.shape))
        elif name in INDEX_INPUT and position == 1:
            size = attributes["size"] if name == "scatter_add" else kinds[0].shape[attributes.get("dim", 0)]
            if not size and kind.numel:
                return None
            inputs.append(integers(rng, kind.shape, 0, max(size, 1)))
        else:
            inputs.append(integers(rng, kind.shape, -(2**63), 2**63))
    return inputs


def generate(name: str, rng: Random, count: int = 60) -> Iterator[Case]:
    """The golden cases whose numbers are FP32 (of tensor cores: all), without NaN, and without infinities where results
    are inexact; then so many others."""
    end = 0.0 if isinstance(REGISTRY[name], Inexact) else torch.inf
    known = []
    for one in golden(name):
        is_short = any(x.dtype in (torch.bfloat16, torch.float16) for x in one.inputs)
        if one.bits == 32 and (not is_short or name == "tensor_core_matmul"):
            inputs = [x.nan_to_num(0.0, end, -end) if x.is_floating_point() else x for x in one.inputs]
            known.append(Case(inputs, one.attributes))
    if name == "reshape":
        # No other size fits by chance.
        known += [Case(case.inputs, {"shape": shape}) for case in known for shape in ((2, 12), (2, 3, 2, 2), (24,))]
    yield from (case for case in known if all(x.numel() <= 2 * MOST for x in case.inputs))
    made = 0
    for _ in range(40 * count):
        case, rate = rng.choice(known), rng.choice((0.0, 0.05, 0.1, 0.3))
        attributes = {key: _attribute(rng, value, rate) for key, value in case.attributes.items()}
        if name == "store":
            attributes = {"slot": 0}
        kinds = [TensorType(_shape(rng, tuple(x.shape), rate), DType.of(x.dtype)) for x in case.inputs]
        try:
            output = REGISTRY[name].infer(kinds, attributes, TensorType((), DType.F32))
        except ProgramError:
            continue
        most = MOST // 20 if name in FUNCTIONS else MOST
        if rate and any(kind.numel > most for kind in (*kinds, output)):
            continue
        inputs = _drawn(name, rng, kinds, attributes)
        if inputs is not None:
            yield Case(inputs, attributes)
            made += 1
        if made == count:
            return
    assert made >= count // 3, f"{made} of {name} were accepted: too few"


CASES: dict[str, Callable[..., Iterator[Case]]] = {
    name: partial(generate, name) for name, operator in sorted(REGISTRY.items()) if not isinstance(operator, Source)
}
