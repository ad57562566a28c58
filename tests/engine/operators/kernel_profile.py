"""Run operators on fixed inputs in this process's hardware profile and write what comes out to an .npz file.

    python kernel_profile.py FILE THREADS

For every inexact operator: `NAME.y` f64, `NAME.d` f64, `NAME.p` f64, what `certify` rounds (the CPU computes it panel
by panel), and `NAME.r`, the f32 after certified rounding; for every exact one `NAME.v`. The profile is set by the
environment before the process starts; nothing can change it afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import torch
from roundlog.operators import REGISTRY, Direct, Inexact
from roundlog.rounding import Recorder

Entry = tuple[str, str, list[torch.Tensor], dict[str, object]]

CONVOLUTION = {"stride": (1, 2), "padding": (1, 0), "dilation": (1, 1), "groups": 2}


def _normal(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))


def _wide(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    """Numbers of so many magnitudes that FP64 cannot add them exactly: a few thousand alike would leave no error."""
    return _normal(rng, *shape) * torch.from_numpy(2.0 ** rng.integers(-15, 15, shape)).float()


def _bits(rng: np.random.Generator, count: int) -> torch.Tensor:
    """Random finite numbers of every exponent, subnormals too."""
    x = rng.integers(0, 2**32, 2 * count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return torch.from_numpy(x[np.isfinite(x)][:count])


def inexact() -> Iterator[Entry]:
    """(label, operator, inputs, attributes)"""
    rng = np.random.default_rng(2026)
    yield "matmul", "matmul", [_normal(rng, 24, 160), _normal(rng, 160, 20)], {}
    yield "matmul batched", "matmul", [_normal(rng, 3, 9, 65), _normal(rng, 3, 65, 11)], {}
    x, w = _normal(rng, 2, 4, 9, 8), _normal(rng, 6, 2, 3, 3)
    g = _normal(rng, 2, 6, 9, 3)
    yield "conv2d", "conv2d", [x, w], dict(CONVOLUTION)
    yield "conv2d_grad_input", "conv2d_grad_input", [g, w], {**CONVOLUTION, "size": (9, 8)}
    yield "conv2d_grad_weight", "conv2d_grad_weight", [g, x], {**CONVOLUTION, "size": (3, 3)}
    yield "sum of a row", "sum", [_wide(rng, 5, 3001)], {"dims": (1,)}
    yield "sum of a column", "sum", [_wide(rng, 3001, 5)], {"dims": (0,)}
    yield "sum of all", "sum", [_wide(rng, 600, 301)], {"dims": (0, 1)}
    index = torch.from_numpy(rng.integers(0, 7, (2000,)))
    yield "scatter_add", "scatter_add", [_wide(rng, 2000), index], {"dim": 0, "size": 7}
    argument = torch.cat([_normal(rng, 500), 9 * _normal(rng, 500), 2.0**-9 * _normal(rng, 203)])
    for name in ("exp", "expm1", "tanh", "erf"):
        yield name, name, [argument], {}
    positive = torch.cat([argument.abs() + 2.0**-20, _bits(rng, 300).abs() + 2.0**-149])
    for name in ("log", "log1p"):
        yield name, name, [positive], {}


def exact() -> Iterator[Entry]:
    rng = np.random.default_rng(2027)
    a, b = _bits(rng, 50_003), _bits(rng, 50_003)
    for name in ("add", "sub", "mul", "div", "maximum", "minimum", "lt", "le", "eq"):
        yield name, name, [a, b], {}
        yield f"{name} of a scalar", name, [torch.tensor(0.1), a], {}
        yield f"{name} by a scalar", name, [a, torch.tensor(-3.0)], {}
    for name in ("neg", "abs", "floor"):
        yield name, name, [a], {}
    yield "sqrt", "sqrt", [a.abs()], {}
    integers = torch.from_numpy(rng.integers(-(2**63), 2**63 - 1, 10_001))
    yield "to_f32", "to_f32", [integers >> torch.arange(10_001) % 63], {}
    yield "add of integers", "add", [integers, integers.flip(0)], {}
    yield "mul of integers", "mul", [integers, integers.flip(0)], {}
    yield "sum_i64", "sum_i64", [integers], {"dims": (0,)}
    few = torch.from_numpy(rng.integers(-2, 3, (4, 19, 12, 12)).astype(np.float32)) * -0.0
    few[:, ::2] += torch.from_numpy(rng.integers(-2, 3, (4, 10, 12, 12)).astype(np.float32))
    for name in ("amax", "amin"):
        yield name, name, [few], {"dims": (1, 3)}
    yield "argmax", "argmax", [few], {"dim": 3}
    pool = {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 1), "dilation": (1, 1)}
    yield "max_pool_index", "max_pool_index", [few], pool
    nhwc = few.contiguous(memory_format=torch.channels_last)
    yield "max_pool_index of channels last", "max_pool_index", [nhwc], pool
    yield "where", "where", [a > b, a, b], {}


def main() -> None:
    path, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    results: dict[str, np.ndarray] = {}
    recorder = Recorder(4)
    for label, name, inputs, attributes in inexact():
        operator = REGISTRY[name]
        assert isinstance(operator, Inexact)
        y = operator.approximate(inputs, attributes)
        results[f"{label}.y"] = y.numpy()
        results[f"{label}.d"] = operator.bound(inputs, attributes, y).whole(y).numpy()
        # So wide an interval that every element is marked.
        results[f"{label}.p"] = operator.certify(inputs, attributes, 2.0**60)[1].y.numpy()
        results[f"{label}.r"] = recorder.round(0, operator, inputs, attributes).numpy()
    for label, name, inputs, attributes in exact():
        operator = REGISTRY[name]
        assert isinstance(operator, Direct)
        results[f"{label}.v"] = operator.compute(inputs, attributes).numpy()
    np.savez(path, **results)


if __name__ == "__main__":
    main()
