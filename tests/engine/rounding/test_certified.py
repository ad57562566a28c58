"""Whatever FP64 value a machine computes within the bound, the FP32 value is the same: with a log and without."""

from dataclasses import replace

import numpy as np
import pytest
import roundlog.rounding.resolve as resolve
import torch
from roundlog.log import Decision, Entries
from roundlog.number_format import FLOAT32, narrow_float32
from roundlog.operators import Inexact, operator
from roundlog.operators.bounds import FullBound
from roundlog.rounding import Follower, LogFinding, LogFindingKind, Recorder, Window, in_order

GUARD = 4


class OtherMachine(Inexact):
    """An operator as some other hardware might compute it: off by anything up to the bound. `width` stretches the
    bound, so that many elements are ambiguous and some have several candidates."""

    def __init__(self, inner: Inexact, seed: int, width: float = 1.0, reach: float = 1.0) -> None:
        self.inner = inner
        self.width = width
        self.reach = reach
        self.generator = torch.Generator().manual_seed(seed)
        self.resolved = 0

    def infer(self, inputs, attributes, declared):
        return self.inner.infer(inputs, attributes, declared)

    def approximate(self, inputs, attributes):
        y = self.inner.approximate(inputs, attributes)
        d = self.inner.bound(inputs, attributes, y).whole(y) * (self.width - 1.0)
        noise = torch.rand(y.shape, dtype=torch.float64, generator=self.generator) * 2 - 1
        # Most machines that matter are at the far end of what they may do.
        return y + d * noise.sign() * noise.abs() ** 0.1 * self.reach

    def bound(self, inputs, attributes, y):
        # No two machines compute the bound itself to the same bits.
        jitter = 1 + 2.0**-40 * torch.rand((), generator=self.generator, dtype=torch.float64)
        d = self.inner.bound(inputs, attributes, y).whole(y)
        return FullBound((d * self.width * jitter).reshape(-1))

    def exact(self, inputs, attributes, elements, format=FLOAT32):
        self.resolved += len(elements)
        return self.inner.exact(inputs, attributes, elements, format)


def matmul_case(seed: int):
    torch.manual_seed(seed)
    a, b = torch.randn(24, 64), torch.randn(64, 40)
    # Columns that cancel: results far below the bound, with many candidates.
    b[:, 0] = 0.0
    b[0, 0], b[1, 0] = 1e4, -1e4
    a[:, 1] = a[:, 0] * (1 + 2.0**-20)
    return operator("matmul"), [a, b], {}


def sum_case(seed: int):
    torch.manual_seed(seed)
    x = torch.randn(200, 33)
    x[::2, 32] = -x[::2, :32].sum(1)
    # So small that FP64 does not add it exactly: of exact sums nothing is in doubt.
    x[:, 0] *= 2.0**-40
    return operator("sum"), [x], {"dims": (1,)}


def exp_case(seed: int):
    torch.manual_seed(seed)
    return operator("exp"), [torch.randn(4000)], {}


CASES = {"matmul": (matmul_case, 2.0**16), "sum": (sum_case, 2.0**18), "exp": (exp_case, 2.0**18)}


def truth(op, inputs, attributes):
    shape = op.approximate(inputs, attributes).shape
    count = int(np.prod(shape))
    return op.exact(inputs, attributes, torch.arange(count)).reshape(shape)


def trained(op, inputs, attributes, seed=1, width=1.0):
    """(the trainer's result, its log of the operator)."""
    recorder = Recorder(GUARD)
    result = recorder.round(0, OtherMachine(op, seed, width), inputs, attributes)
    return result, recorder.take().get(0, Entries.empty())


def audited(op, inputs, attributes, entries, *, seed=2, width=1.0, share=0.0, guard=GUARD):
    """(the auditor's result, findings, how many elements it had to resolve)."""
    machine = OtherMachine(op, seed, width)
    follower = Follower(guard, share, np.random.default_rng(seed))
    follower.follow(7, {0: entries})
    return follower.round(0, machine, inputs, attributes), follower.findings, machine.resolved


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int32)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(2))
def test_every_machine_gives_the_correct_rounding_with_and_without_a_log(name: str, seed: int) -> None:
    case, wide = CASES[name]
    op, inputs, attributes = case(seed)
    right = bits(truth(op, inputs, attributes))
    for width in (1.0, wide):
        result, entries = trained(op, inputs, attributes, seed, width)
        assert torch.equal(bits(result), right)
        for other in range(5):
            result, findings, resolved = audited(op, inputs, attributes, entries, seed=100 + other, width=width)
            assert torch.equal(bits(result), right)
            assert findings == []
            # The honest log spares the auditor every exact evaluation.
            assert resolved == 0


def bend(entries: Entries, position: int) -> Entries:
    """The log with one decision turned round (a value: moved by one ulp)."""
    decisions, values = entries.decisions.copy(), entries.values.copy()
    if decisions[position] == Decision.VALUE:
        values[int((decisions[:position] == Decision.VALUE).sum())] ^= 1
    else:
        decisions[position] = 1 - decisions[position]
    return replace(entries, decisions=decisions, values=values)


@pytest.mark.parametrize("name", CASES)
def test_every_single_bent_decision_is_found_when_all_are_verified(name: str) -> None:
    case, wide = CASES[name]
    op, inputs, attributes = case(1)
    right, entries = trained(op, inputs, attributes, width=wide)
    assert {int(Decision.UP), int(Decision.DOWN)} <= set(entries.decisions.tolist()) and len(entries) > 20
    for position in range(0, len(entries), max(1, len(entries) // 40)):
        result, findings, _ = audited(op, inputs, attributes, bend(entries, position), width=wide, share=1.0)
        assert [(f.step, f.operator, f.element, f.kind) for f in findings] == [
            (7, 0, int(entries.indices[position]), LogFindingKind.FORGED)
        ]
        assert torch.equal(bits(result), bits(right))


@pytest.mark.parametrize("name", CASES)
def test_a_bent_decision_outside_the_ambiguous_set_is_found_without_any_sample(name: str) -> None:
    case, wide = CASES[name]
    op, inputs, attributes = case(1)
    right, entries = trained(op, inputs, attributes, width=wide)
    # Elements of which the auditor is certain itself, although the trainer had to log them.
    result, _, _ = audited(op, inputs, attributes, Entries.empty(), width=wide)
    follower = Follower(GUARD, 0.0, np.random.default_rng(0))
    follower.follow(0, {0: Entries.empty()})
    follower.round(0, OtherMachine(op, 2, wide), inputs, attributes)
    ambiguous = {f.element for f in follower.findings}
    certain = [p for p, index in enumerate(entries.indices) if int(index) not in ambiguous]
    assert len(certain) > 5
    for position in certain[:40]:
        result, findings, _ = audited(op, inputs, attributes, bend(entries, position), width=wide)
        assert torch.equal(bits(result), bits(right))
        assert [f.element for f in findings] == [int(entries.indices[position])]


def test_an_entry_far_from_every_boundary_is_forged() -> None:
    op, inputs, attributes = matmul_case(2)
    right, entries = trained(op, inputs, attributes)
    listed = set(entries.indices.tolist())
    extra = next(i for i in range(500, 960) if i not in listed)
    where = int(np.searchsorted(entries.indices, extra))
    more = Entries(
        np.insert(entries.indices, where, extra), np.insert(entries.decisions, where, np.uint8(1)), entries.values
    )
    result, findings, _ = audited(op, inputs, attributes, more)
    assert [(f.element, f.kind) for f in findings] == [(extra, LogFindingKind.FORGED)]
    assert "not near a rounding boundary" in findings[0].message
    assert torch.equal(bits(result), bits(right))


@pytest.mark.parametrize("name", CASES)
def test_a_missing_entry_is_resolved_and_reported(name: str) -> None:
    case, wide = CASES[name]
    op, inputs, attributes = case(3)
    right, _ = trained(op, inputs, attributes, width=wide)
    result, findings, resolved = audited(op, inputs, attributes, Entries.empty(), width=wide)
    assert torch.equal(bits(result), bits(right))
    assert findings
    assert {f.kind for f in findings} == {LogFindingKind.MISSING}
    assert resolved == len(findings)


def every_entry_says(entries: Entries, bits_: int) -> Entries:
    decisions = np.full_like(entries.decisions, int(Decision.VALUE))
    return Entries(entries.indices, decisions, np.full(len(decisions), bits_, dtype=np.uint32))


@pytest.mark.parametrize("bits_", [0x7F7FFFFF, 0xFF7FFFFF])
def test_a_logged_value_that_is_no_candidate_is_forged_at_once(bits_: int) -> None:
    op, inputs, attributes = sum_case(1)
    width = 2.0**18
    right, entries = trained(op, inputs, attributes, width=width)
    result, findings, _ = audited(op, inputs, attributes, every_entry_says(entries, bits_), width=width)
    assert {f.element for f in findings} == set(entries.indices.tolist())
    assert torch.equal(bits(result), bits(right))


def test_a_logged_negative_zero_never_gets_into_a_result() -> None:
    small = 2.0**-60
    op, attributes = operator("sum"), {"dims": (1,)}
    inputs = [torch.tensor([[1.0, small, -1.0, -small], [1.0, small, 1.0, -small]])]
    width = 2.0**60
    _, entries = trained(op, inputs, attributes, width=width)
    assert len(entries) == 2
    result, _, _ = audited(op, inputs, attributes, every_entry_says(entries, 0x80000000), width=width)
    assert bits(result)[0].item() == 0


def test_the_secret_sample_finds_bent_decisions_at_the_promised_rate() -> None:
    op, inputs, attributes = exp_case(5)
    width = 2.0**18
    _, entries = trained(op, inputs, attributes, width=width)
    bent = entries
    for position in range(len(entries)):
        bent = bend(bent, position)
    ambiguous = audited(op, inputs, attributes, Entries.empty(), width=width)[2]
    share, caught, rounds = 0.05, 0, 40
    for seed in range(rounds):
        machine = OtherMachine(op, 2, width)
        follower = Follower(GUARD, share, np.random.default_rng(seed))
        follower.follow(0, {0: bent})
        follower.round(0, machine, inputs, attributes)
        caught += machine.resolved
    expected = rounds * share * ambiguous
    assert abs(caught - expected) < 5 * np.sqrt(expected)


def test_values_that_are_not_finite_are_left_for_the_executor_to_stop_at() -> None:
    op = operator("sum")
    x = torch.ones(3, 4)
    x[1, 2] = torch.inf
    for rounding in (Recorder(GUARD), Follower(GUARD, 0.05, np.random.default_rng(0))):
        result = rounding.round(0, op, [x], {"dims": (1,)})
        assert result.isfinite().reshape(-1).tolist() == [True, False, True]


@pytest.mark.parametrize("width", [23, 31])
def test_a_logged_value_between_the_candidates_that_has_too_many_bits_is_forged(width: int) -> None:
    """Followed, it would be a result that no honest machine of this job can hold."""
    op, inputs, attributes = matmul_case(0)
    recorder, kind = Recorder(GUARD), narrow_float32(width)
    result = recorder.round(0, OtherMachine(op, 1, 2.0**24), inputs, attributes, kind)
    entries = recorder.take()[0]
    places = np.flatnonzero(entries.decisions == int(Decision.VALUE))
    assert len(places)
    forged = replace(entries, values=entries.values | 1)
    follower = Follower(GUARD, 0.0, np.random.default_rng(0))
    follower.follow(0, {0: forged})
    followed = follower.round(0, OtherMachine(op, 2, 2.0**24), inputs, attributes, kind)
    assert torch.equal(followed, result)
    assert {f.element for f in follower.findings} >= set(entries.indices[places].tolist()) - {0}
    assert {f.kind for f in follower.findings} == {LogFindingKind.FORGED}


@pytest.mark.parametrize("at_once", [1, 7, 64])
def test_nothing_depends_on_how_many_elements_are_decided_at_once(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> tuple[torch.Tensor, Entries, torch.Tensor, list[LogFinding]]:
        case, wide = CASES["sum"]
        op, inputs, attributes = case(1)
        right, entries = trained(op, inputs, attributes, width=wide)
        forged = bend(bend(every_entry_says(entries, 0x7F7FFFFF) if at_once == 64 else entries, 0), len(entries) - 1)
        result, findings, _ = audited(op, inputs, attributes, forged, width=wide, share=1.0)
        return right, entries, result, findings

    right, entries, result, findings = work()
    assert findings and len(entries) > 100
    monkeypatch.setattr(resolve, "AT_ONCE", at_once)
    again = work()
    assert torch.equal(bits(again[0]), bits(right)) and again[1] == entries
    assert torch.equal(bits(again[2]), bits(result)) and sorted(map(str, again[3])) == sorted(map(str, findings))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_entries_of_parts_in_any_order_are_those_of_the_whole(axis: int) -> None:
    draw = np.random.default_rng(axis)
    decisions = draw.integers(0, 3, 60, dtype=np.uint8)
    values = np.arange((decisions == Decision.VALUE).sum(), dtype=np.uint32)
    whole = Entries(np.sort(draw.permutation(4 * 5 * 6)[:60]), decisions, values)
    parts = [Window((4, 5, 6), axis, start, stop) for start, stop in ((2, 4 + axis), (0, 2))]
    assert in_order([one.entries_of_whole(one.entries(whole)) for one in parts]) == whole
