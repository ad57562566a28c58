"""Running sums for a whole element at once are those of the reference, term by term."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch
from roundlog.adjudication.adjudicate import run_segment, segments
from roundlog.adjudication.openings import Material
from roundlog.adjudication.partial import ExactSum, RunningResult, start
from roundlog.definitions import FLOATS
from roundlog.descriptors import Family
from roundlog.dispute import disputed_operator as sums
from roundlog.dispute.disputed_operator import running_sums
from roundlog.program import DType

from tests.engine.adjudication.adjudication_cases import descriptor_of, of_numbers
from tests.engine.operators.operator_cases import CASES

SUMS = ["sum", "matmul", "conv2d", "conv2d_grad_input", "conv2d_grad_weight", "avg_pool2d"]


def reference(descriptor, element: int, material: Material) -> list[RunningResult]:
    partial, found = start(descriptor), []
    for terms in segments(descriptor):
        partial = run_segment(descriptor, element, partial, terms, material)
        found.append(partial)
    return found


@pytest.mark.slow_but("f32-matmul", "bf16-matmul", "f16-sum")
@pytest.mark.parametrize("name", sorted(set(SUMS) & set(CASES)))
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_sum_of_every_kernel_is_added_up_exactly(
    name: str, dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Smaller than most sums, so that there are several blocks.
    monkeypatch.setattr(sums, "_BLOCK", 8)
    rng, tried, specials = Random(f"sums {name}"), 0, set()
    for case in CASES[name](Random(f"tiebreak {name}")):
        descriptor = of_numbers(descriptor_of(name, case.inputs, case.attributes), dtype)
        if not descriptor.elements or not descriptor.terms:
            continue
        inputs = [x.to(dtype.torch_dtype).nan_to_num() for x in case.inputs]
        if rng.random() < 0.4:
            flat = inputs[0].reshape(-1).clone()
            for _ in range(rng.choice((1, 2, len(flat)))):
                flat[rng.randrange(len(flat))] = rng.choice((torch.inf, torch.inf, torch.inf, -torch.inf, torch.nan))
            inputs[0] = flat.reshape(inputs[0].shape)
        material = Material(values=dict(enumerate(inputs)), states=[], dataset=[], schedule=torch.zeros(0))
        for segment in (1, 3, 64):
            cut = replace(descriptor, segment=segment)
            element = rng.randrange(descriptor.elements)
            expected = reference(cut, element, material)
            assert running_sums(cut, element, material) == expected, (name, case.attributes, element, segment)
            tried += 1
            specials |= {partial.special for partial in expected if isinstance(partial, ExactSum)}
    assert tried > 20 and len(specials) > 2, (tried, specials)


def test_whatever_is_no_sum_is_left_to_the_reference() -> None:
    x = torch.randn(3, 5)
    material = Material(values={0: x}, states=[], dataset=[], schedule=torch.zeros(0))
    extreme = descriptor_of("amax", [x], {"dims": (1,)})
    assert extreme.family == Family.EXTREME and running_sums(extreme, 0, material) is None
    nothing = descriptor_of("sum", [x[:, :0]], {"dims": (1,)})
    assert nothing.terms == 0 and running_sums(nothing, 0, material) is None
