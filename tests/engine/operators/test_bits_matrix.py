"""Every inexact operator with 23..31 bits: the mathematical value rounded once, to the bit, with a log and without."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import numpy as np
import pytest
import torch
from roundlog.adjudication import binary32 as ieee
from roundlog.log import Entries
from roundlog.number_format import narrow_float32
from roundlog.operators import REGISTRY, Inexact
from roundlog.rounding import Follower, Recorder
from roundlog.rounding.ovt import ThresholdRecorder

from tests.engine.operators.operator_cases import CASES, Case
from tests.engine.oracle.array import from_torch
from tests.engine.oracle.inexact import INEXACT, Real

WIDTHS = range(23, 32)


def _cases(name: str) -> list[tuple[Case, list[Real]]]:
    """Small ones with finite results, and the oracle's values."""
    chosen = []
    for case in CASES[name](Random(f"tiebreak {name}")):
        if name in ("log", "log1p"):
            x = case.inputs[0].abs()
            case = Case([torch.where(x == 0, 1.0, x)])
        reals = INEXACT[name]([from_torch(x) for x in case.inputs], case.attributes)[1]
        if reals and all(abs(real.value) < 2**126 for real in reals):
            chosen.append((case, reals))
    return chosen


@pytest.mark.parametrize("name", sorted(INEXACT))
def test_every_width_is_rounded_once_with_a_log_and_without(name: str) -> None:
    operator = REGISTRY[name]
    assert isinstance(operator, Inexact)
    cases = _cases(name)
    assert cases
    for number, (case, reals) in enumerate(cases):
        # Every case with three of the widths, every width with a third of the cases.
        for width in WIDTHS[number % 3 :: 3]:
            kind = narrow_float32(width)
            expected = tuple(ieee.rounded(real.value, kind) for real in reals)
            recorder = Recorder(4)
            rounded = recorder.round(0, operator, case.inputs, case.attributes, kind)
            assert from_torch(rounded).items == expected, (name, width, case)
            follower = Follower(4, 0.0, np.random.default_rng(0))
            follower.follow(0, {0: recorder.take().get(0, Entries.empty())})
            for by in (follower, Follower.without_log(4)):
                assert from_torch(by.round(0, operator, case.inputs, case.attributes, kind)).items == expected
            assert follower.findings == []
            # OVT's results are equal, but for those that FP64 cannot tell from a boundary.
            threshold = ThresholdRecorder().round(0, operator, case.inputs, case.attributes, kind)
            y = operator.approximate(case.inputs, case.attributes)
            assert from_torch(threshold).items == tuple(ieee.rounded(Fraction(x), kind) for x in y.reshape(-1).tolist())
