"""Infinities, NaN and zeros, put into the inputs of the inexact operators where they hurt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import torch
from roundlog.operators import REGISTRY, Inexact

from tests.engine.operators import operands as of
from tests.engine.operators.operands import floats
from tests.engine.operators.operator_cases import CASES, Case

INEXACT = sorted(name for name, operator in REGISTRY.items() if isinstance(operator, Inexact))
INFINITY, NAN = float("inf"), float("nan")
MOST_WORK = 3000
"""Terms of all elements of a case: references compute them one by one in Python."""


def hostile(name: str, rng: Random, count: int, nan: bool = False) -> Iterator[Case]:
    """So many cases of an inexact operator. nan: also with NaN in the first input, which no
    job's data hold."""
    known = [case for case in CASES[name](rng) if all(0 < x.numel() < 400 for x in case.inputs)]
    for _ in range(count):
        if name.startswith("conv2d") and rng.random() < 0.8:
            case = convolution(name, rng)
        else:
            case = rng.choice(known)
        inputs = [
            spoilt(x, rng, nan and number == 0 and x.ndim > 0) if x.is_floating_point() else x
            for number, x in enumerate(case.inputs)
        ]
        yield Case(inputs, case.attributes)


def spoilt(x: torch.Tensor, rng: Random, nan: bool) -> torch.Tensor:
    """With some elements, none or all replaced, preferably at the rims, which is where padding is."""
    x = x.clone()
    values = [INFINITY, -INFINITY] + [NAN] * nan
    how = rng.randrange(8)
    if how == 0:
        x.fill_(rng.choice(values))
    if how in (1, 2):
        x.fill_(0.0)
    if how in (2, 3, 4):
        for _ in range(rng.choice((1, 1, 2, 5))):
            x.view(-1)[rng.randrange(x.numel())] = rng.choice((*values, 0.0, 3e38))
    if how in (5, 6) and x.ndim:
        for axis in range(max(0, x.ndim - 2), x.ndim):
            if rng.random() < 0.6:
                x.select(axis, rng.choice((0, -1))).fill_(rng.choice(values))
    return x


def convolution(name: str, rng: Random) -> Case:
    """Small maps under large kernels, so that whole taps meet nothing but padding."""
    while True:
        pair = {key: (rng.choice(sizes), rng.choice(sizes)) for key, sizes in _SIZES.items()}
        groups = rng.choice((1, 1, 2))
        n, inner, outputs = rng.choice((1, 2, 3)), rng.choice((1, 2)), groups * rng.choice((1, 2))
        image, kernel = pair["image"], pair["kernel"]
        spans = [image[a] + 2 * pair["padding"][a] - pair["dilation"][a] * (kernel[a] - 1) - 1 for a in (0, 1)]
        if min(spans) < 0:
            continue
        out = [span // stride + 1 for span, stride in zip(spans, pair["stride"], strict=True)]
        shapes: dict[str, of.Shape] = {
            "x": (n, inner * groups, *image),
            "w": (outputs, inner, *kernel),
            "g": (n, outputs, *out),
        }
        reads, more = _ROLES[name]
        attributes: Mapping[str, Any] = {
            **{key: pair[key] for key in ("stride", "padding", "dilation")},
            "groups": groups,
            **({"size": shapes[more][2:]} if more else {}),
        }
        terms = inner * groups * outputs * n * kernel[0] * kernel[1] * out[0] * out[1]
        if terms <= MOST_WORK:
            return Case([floats(rng, shapes[letter], of.normal) for letter in reads], attributes)


_SIZES = {
    "image": (1, 1, 2, 3, 5),
    "kernel": (1, 2, 3, 4, 5),
    "stride": (1, 1, 2, 3),
    "padding": (0, 1, 2, 3),
    "dilation": (1, 1, 2),
}
_ROLES = {"conv2d": ("xw", ""), "conv2d_grad_input": ("gw", "x"), "conv2d_grad_weight": ("gx", "w")}
