"""However large a stranger's program is, it is refused at once and costs next to nothing: time or memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import tracemalloc

import pytest
from roundlog.operators import check
from roundlog.program import Node, Program, ProgramError, TensorType, from_json, program_text, to_json
from roundlog.program.model import DType
from roundlog.program.program_text import MAX_ITEMS, MAX_NODES, MAX_TEXT_BYTES

HEAD = b'{"batch_size":1,"data":[],"format":"tiebreak-program","nodes":['
TAIL = b'],"schedule":[],"sources":[],"states":[],"version":1}'


def document(item: bytes, count: int) -> bytes:
    return HEAD + (item + b",") * (count - 1) + item + TAIL


@pytest.mark.slow_but("lists", "tables", "numbers", "strings")
@pytest.mark.parametrize(
    ("item", "count"),
    [
        (b'["neg",[0],{},"f32",[]]', 10_000_000),
        (b"[]", 3_000_000),
        (b"{}", 3_000_000),
        (b"[[[[[[[[]]]]]]]]", 600_000),
        (b'{"a":{"a":{}}}', 1_500_000),
        (b"1", 5_000_000),
        (b'"\\u00e9"', 5_000_000),
    ],
    ids=["operators", "lists", "tables", "deep lists", "deep tables", "numbers", "strings"],
)
def test_millions_of_anything_are_refused_before_they_are_parsed(item: bytes, count: int) -> None:
    text = document(item, count)
    tracemalloc.start()
    started = time.process_time()
    try:
        with pytest.raises(ProgramError, match=r"(items|bytes), more than"):
            from_json(text)
        assert time.process_time() - started < 2.0
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_wide_character_cannot_make_a_text_four_times_as_large() -> None:
    text = document(b'["neg",[0],{},"f32",[]]', 1000) + "\U0001f40d".encode()
    with pytest.raises(ProgramError, match="not ASCII"):
        from_json(text)


MEASURE = """
import resource, sys
from roundlog.program import ProgramError, from_json
text = sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    from_json(text)
except ProgramError:
    pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.long
@pytest.mark.parametrize("item", [b"[[[[[[[[]]]]]]]]", b"[]", b'{"a":{"a":{}}}', b'"ab"'], ids=range(4))
def test_the_largest_text_that_is_parsed_takes_less_than_half_a_gigabyte(item: bytes) -> None:
    each = 1 + sum(item.count(mark) for mark in (b",", b"[", b"{"))
    text = document(item, min((MAX_ITEMS - 20) // each, (MAX_TEXT_BYTES - 200) // (len(item) + 1)))
    assert len(text) <= MAX_TEXT_BYTES
    measured = subprocess.run([sys.executable, "-c", MEASURE], input=text, check=True, capture_output=True, timeout=120)
    assert int(measured.stdout) << 10 < 512 << 20


def chain(length: int) -> Program:
    """A valid program of so many operators."""
    scalar = TensorType((), DType.F32)
    nodes = [Node("state", (), {"slot": 0}, scalar, "net.py:1")]
    nodes += [Node("neg", (i,), {}, scalar, "net.py:2") for i in range(length - 3)]
    nodes += [Node("loss", (0,), {}, scalar), Node("store", (length - 3,), {"slot": 0}, scalar)]
    return Program(nodes=tuple(nodes), state_names=("x",), data_names=(), schedule_names=(), batch_size=1)


@pytest.mark.parametrize("most", [500, pytest.param(MAX_NODES, marks=pytest.mark.long)])
def test_the_largest_program_is_read_and_one_operator_more_is_not_even_written(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_text, "MAX_NODES", most)
    text = to_json(chain(most))
    program = from_json(text)
    check(program)
    assert len(program.nodes) == most
    with pytest.raises(ProgramError, match=f"has {most + 1} operators, more than the {most} allowed"):
        to_json(chain(most + 1))
    raw = json.loads(text)
    raw["nodes"].insert(1, raw["nodes"][1])
    raw["sources"].append("")
    with pytest.raises(ProgramError, match=f"has {most + 1} operators, more than the {most} allowed"):
        from_json(json.dumps(raw, sort_keys=True, separators=(",", ":")).encode())


def test_constants_that_no_reader_would_take_are_not_written() -> None:
    many = TensorType((1 << 16,), DType.I64)
    nodes = tuple(Node("constant", (), {"bits": tuple([7] * (1 << 16))}, many) for _ in range(MAX_ITEMS >> 16))
    program = Program(nodes=nodes, state_names=(), data_names=(), schedule_names=(), batch_size=1)
    with pytest.raises(ProgramError, match="items, more than"):
        to_json(program)
