"""What the ranks of the tests do with single steps, and what one process comes to alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
import torch
from roundlog.commitments import canonical, tensor_bytes
from roundlog.execution import Executor, StoppedError, slicing
from roundlog.execution.executor import StepResult
from roundlog.execution.microbatch import MicrobatchExecutor
from roundlog.execution.microbatch.analysis import samples_of
from roundlog.execution.ranks import Ranks, RanksExecutor, batch_sums, dismiss, rank_part, serve
from roundlog.execution.ranks import batch_sums as sums_of_ranks
from roundlog.execution.ranks.batch_sums import BatchSum, sums_over
from roundlog.execution.slicing import ranges
from roundlog.log.payload import decode, encode
from roundlog.number_format import FLOAT32, narrow_float32
from roundlog.operators import Inexact, StepInputs
from roundlog.program import DType, Node, Program, TensorType
from roundlog.rounding import Follower, Recorder, Window

from tests.engine.microbatch import random_programs
from tests.engine.microbatch.test_parts import CASES, DRAWS, drawn


def digest(result: StepResult) -> str:
    sums = sha256(np.float64(result.loss).tobytes())
    for state in result.states:
        sums.update(str(tuple(state.shape)).encode() + bytes(tensor_bytes(canonical(state))))
    return sums.hexdigest()


def executed(executor: Any, inputs: StepInputs, log: bytes | None = None) -> list[Any]:
    """[digest or the sentence of the stop, the log in hex, findings by that log or by one's own]."""
    recorder = Recorder(4)
    try:
        found = digest(executor.run(inputs, recorder))
    except StoppedError as error:
        found = f"{error.operator} {error.element} {error}"
        return [found, "", []]
    written = encode(recorder.take())
    findings = []
    for share in (1.0, 0.3):
        follower = Follower(4, share, np.random.default_rng(5))
        follower.follow(inputs.step, decode(written if log is None else log, None))
        assert digest(executor.run(inputs, follower)) == found
        findings += [[one.operator, one.element, one.message] for one in follower.findings]
    return [found, written.hex(), findings]


def alone(seeds: list[int], mixed: bool = False, bits: int = 32) -> dict[int, list[Any]]:
    """What one process comes to, for all of these programs. mixed: of several formats. bits: of FP32 values."""
    made = {seed: _made(seed, mixed) for seed in seeds}
    return {seed: executed(Executor(one.program, narrow_float32(bits)), one.inputs) for seed, one in made.items()}


def _made(seed: int, mixed: bool) -> random_programs.Made:
    return random_programs.make_mixed(seed) if mixed else random_programs.make(seed)


def on_its_device(ranks: Ranks, inputs: StepInputs) -> StepInputs:
    """Inputs on the device of this rank."""
    states, data = ([x.to(ranks.device) for x in given] for given in (inputs.states, inputs.data))
    return replace(inputs, states=states, data=data, schedule=inputs.schedule.to(ranks.device), device=ranks.device)


def run_programs(
    ranks: Ranks, logs: dict[str, str], cut: bool = False, mixed: bool = False, bits: int = 32
) -> dict[str, list[Any]]:
    """What ranks come to, for all programs that have a sample for every rank; by the log of one process. cut: each rank
    cuts its samples into micro-batches, if it has two. mixed and bits: as for `alone`."""
    found, kind = {}, narrow_float32(bits)
    for seed, log in logs.items():
        made = _made(int(seed), mixed)
        # Sums go alone, a few together, and as many as wait when one is needed.
        rank_part.TOGETHER = (0, 500, 1 << 25)[int(seed) % 3]
        # What owners get comes an element at a time, some, or all.
        sums_of_ranks.SENT_AT_ONCE = (8, 1000, 8 << 20)[int(seed) // 3 % 3]
        # Operators are computed whole, or in slices.
        slicing.WORKSPACE = (1 << 28, 1 << 9)[int(seed) % 2]
        if samples_of(made.program) < ranks.size:
            continue
        every, inputs = made.inputs.step + 1, on_its_device(ranks, made.inputs)
        if ranks.rank:
            serve(
                made.program,
                ranks,
                lambda step, states, inputs=inputs: replace(inputs, step=step),
                f32_format=kind,
                interval=every,
            )
            continue
        # A run that is given up between two comparisons has no part in the next one's.
        with suppress(StoppedError):
            RanksExecutor(made.program, ranks, f32_format=kind, interval=every).run(
                replace(inputs, step=every), Recorder(4)
            )
        batch = samples_of(made.program)
        micro_batches = (batch, ranks.size + 1)[int(seed) % 2 and batch > ranks.size] if cut else 1
        executor = RanksExecutor(made.program, ranks, f32_format=kind, interval=every, micro_batches=micro_batches)
        found[seed] = executed(executor, inputs, bytes.fromhex(log) if log else None)
        dismiss(ranks)
    return found


def infinite(x: torch.Tensor) -> torch.Tensor:
    """An infinity of either sign and a NaN among the terms, so that some sums have one of these, and some several."""
    x = x.clone()
    flat = x.view(-1)
    flat[:: max(len(flat) // 3, 1)] = torch.inf
    flat[1 :: max(len(flat) // 2, 1)] = -torch.inf
    flat[-1] = torch.nan
    return x


def run_sums(ranks: Ranks, in_pieces: bool) -> list[str]:
    """The sums of `test_parts` whose terms are shared out among these ranks, and that are not right.

    in_pieces: whether most of what is in doubt is asked for while shares are rounded, and little is sent at once."""
    if in_pieces:
        batch_sums.AT_ONCE = 3
    sums_of_ranks.SENT_AT_ONCE = 100 if in_pieces else 8 << 20
    cases = []
    for name in CASES:
        for draw in (*DRAWS, infinite):
            # Some have one reader, who owns all of the sum.
            reader = None if len(cases) % 3 else len(cases) % ranks.size
            cases.append((name, draw, *_case(ranks, name, draw, reader)))
    # Alone, some together, and all together.
    wrong = []
    for size in (1, 5, len(cases)):
        for start in range(0, len(cases), size):
            wrong += _wrong_sums(ranks, cases[start : start + size])
    return wrong


def _case(ranks: Ranks, name: str, draw: Any, reader: int | None) -> Any:
    """(this rank's part of a sum, the right values, the right bound of what it owns, where it sees the bound)."""
    _, _, shapes = CASES[name]
    op, attributes, inputs = drawn(name, DRAWS[0] if draw is infinite else draw)
    if draw is infinite:
        inputs[0] = infinite(inputs[0])
    y, bound = op.evaluate(inputs, attributes)
    right = op.exact(inputs, attributes, torch.arange(y.numel()))
    first, last = ranges(shapes[0][0][shapes[0][1]], ranks.size)[ranks.rank]
    part = [x.narrow(axis, first, last - first).to(ranks.device) for x, (_, axis) in zip(inputs, shapes, strict=True)]
    whole = op.terms([tuple(x.shape) for x in inputs], attributes)
    seen: list[torch.Tensor] = []

    def round_share(owned: Inexact, start: int, stop: int) -> torch.Tensor:
        found = owned.bound((), {}, torch.zeros(0))
        places = torch.arange(stop - start, device=ranks.device)
        seen.append(found.at(places, torch.zeros(stop - start, device=ranks.device)).cpu())
        return Recorder(4).round(0, owned, (), {}, FLOAT32, Window((stop,), 0, start, stop))

    kind = TensorType(tuple(y.shape), DType.F32)
    found = BatchSum(kind, FLOAT32, op, attributes, lambda _: part, 1, whole, round_share, reader)
    start, stop = found.share(ranks, ranks.rank)
    return found, right, bound.whole(y).reshape(-1)[start:stop], seen


def _wrong_sums(ranks: Ranks, cases: Sequence[Any]) -> list[str]:
    wrong = []
    sums_of_cases = sums_over(ranks, [batch_sum for _, _, batch_sum, *_ in cases])
    for (name, draw, batch_sum, right, d, seen), found in zip(cases, sums_of_cases, strict=True):
        assert found.shape == batch_sum.output.shape
        if batch_sum.reader not in (None, ranks.rank):
            assert not seen
            continue
        if not torch.equal(canonical(found).cpu().view(torch.int32).reshape(-1), canonical(right).view(torch.int32)):
            wrong.append(f"{name}, {draw.__name__}: other bits")
        # A bound that is not finite says no more than that the exact value decides.
        if seen and not torch.allclose(seen[-1].nan_to_num(7), d.nan_to_num(7), rtol=1e-12, atol=0):
            wrong.append(f"{name}, {draw.__name__}: another bound")
    return wrong


def stopping() -> dict[str, tuple[Program, StepInputs]]:
    """Programs that stop, each at something that one sample alone has to do with."""
    x, index = torch.zeros(6, 2), torch.zeros(6, 1, dtype=torch.int64)
    x[5, 1] = 200.0
    outside = index.clone()
    outside[4] = 9
    twice = outside.clone()
    twice[1] = -3
    found = {
        "a number that is not finite": (x, index),
        "an index out of range": (torch.ones(6, 2), outside),
        "two of them": (torch.ones(6, 2), twice),
        "both": (x, twice),
        "nothing": (torch.ones(6, 2), index),
    }
    kinds = [TensorType((6, 2), DType.F32), TensorType((6, 1), DType.I64)]
    nodes = (
        Node("data", (), {"slot": 0}, kinds[0], "made.py:1"),
        Node("data", (), {"slot": 1}, kinds[1], "made.py:2"),
        Node("exp", (0,), {}, kinds[0], "made.py:3"),
        Node("sum", (2,), {"dims": (0,)}, TensorType((1, 2), DType.F32), "made.py:4"),
        Node("mul", (2, 3), {}, kinds[0], "made.py:5"),
        Node("gather", (4, 1), {"dim": 1}, TensorType((6, 1), DType.F32), "made.py:6"),
        Node("sum", (5,), {"dims": (0, 1)}, TensorType((1, 1), DType.F32), "made.py:7"),
        Node("reshape", (6,), {"shape": ()}, TensorType((), DType.F32), "made.py:8"),
        Node("loss", (7,), {}, TensorType((), DType.F32), "made.py:9"),
        Node("store", (3,), {"slot": 0}, TensorType((1, 2), DType.F32), "made.py:10"),
    )
    program = Program(nodes=nodes, state_names=("s",), data_names=("x", "i"), schedule_names=(), batch_size=6)
    empty, cpu = torch.zeros(0), torch.device("cpu")
    return {
        name: (program, StepInputs(states=[], data=list(data), schedule=empty, seed=1, step=3, device=cpu))
        for name, data in found.items()
    }


def run_stops(ranks: Ranks | None, micro_batches: int = 1) -> dict[str, list[Any]]:
    """What ranks, or one process alone, come to where a step stops."""
    found = {}
    for name, (program, inputs) in stopping().items():
        if ranks is None:
            # The sentence names the indices that were computed together.
            whole = micro_batches == 1
            one = Executor(program) if whole else MicrobatchExecutor(program, micro_batches, Path(gettempdir()))
            found[name] = executed(one, inputs)
        elif ranks.rank:
            serve(program, ranks, lambda step, states, inputs=inputs: inputs)
        else:
            executor = RanksExecutor(program, ranks, micro_batches=micro_batches)
            found[name] = executed(executor, inputs)
            dismiss(ranks)
    return found


def swapping() -> tuple[Program, list[torch.Tensor]]:
    """A program that stores slots of the state in each other, one of them turned, and a state before it."""
    square, row = TensorType((3, 3), DType.F32), TensorType((3, 2), DType.F32)
    nodes = (
        Node("data", (), {"slot": 0}, row, "made.py:1"),
        Node("state", (), {"slot": 0}, square, "made.py:2"),
        Node("state", (), {"slot": 1}, square, "made.py:3"),
        Node("state", (), {"slot": 2}, square, "made.py:4"),
        Node("permute", (1,), {"dims": (1, 0)}, square, "made.py:5"),
        Node("sum", (0,), {"dims": (0, 1)}, TensorType((1, 1), DType.F32), "made.py:6"),
        Node("add", (1, 5), {}, square, "made.py:7"),
        Node("reshape", (5,), {"shape": ()}, TensorType((), DType.F32), "made.py:8"),
        Node("loss", (7,), {}, TensorType((), DType.F32), "made.py:9"),
        Node("store", (2,), {"slot": 0}, square, "made.py:10"),
        Node("store", (4,), {"slot": 1}, square, "made.py:11"),
        Node("store", (3,), {"slot": 2}, square, "made.py:12"),
        Node("store", (6,), {"slot": 3}, square, "made.py:13"),
    )
    names = ("a", "b", "stays", "read")
    program = Program(nodes=nodes, state_names=names, data_names=("x",), schedule_names=(), batch_size=3)
    return program, [torch.arange(9.0).view(3, 3) + 10 * slot for slot in range(4)]


def run_swaps(ranks: Ranks | None) -> list[str]:
    """Digests of the states after each of some steps, by ranks or by one process."""
    program, first = swapping()
    data, schedule = [torch.arange(6.0).view(3, 2)], torch.zeros(0)

    def inputs_of(step: int, states: Sequence[torch.Tensor]) -> StepInputs:
        return StepInputs(states=states, data=data, schedule=schedule, seed=1, step=step, device=torch.device("cpu"))

    if ranks is not None and ranks.rank:
        serve(program, ranks, inputs_of)
        return []
    executor = Executor(program) if ranks is None else RanksExecutor(program, ranks)
    found, states = [], first
    for step in range(4):
        result = executor.run(inputs_of(step, states), Recorder(4))
        states = result.states
        found.append(digest(result))
    if ranks is not None:
        dismiss(ranks)
    return found
