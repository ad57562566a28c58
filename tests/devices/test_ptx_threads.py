"""What threads of the interpreter do together, against the PTX ISA: shuffles, matrices, memory and its races, barriers;
and products by tensor cores against the reference, and against results of real cards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from compare_tensor_cores import read_sets
from roundlog.adjudication.tensor_core_groups import NoTensorCoreValueError, group
from roundlog.definitions.tensor_core import ARITHMETICS

from tests.devices import ptx_machine
from tests.devices.ptx_machine import DivergenceError, Machine, Threads, execute
from tests.devices.ptx_memory import GlobalMemory, MemoryFaultError, RaceError, SharedMemory, TensorMemory
from tests.devices.ptx_program import UnknownPtxError, parse
from tests.engine.arithmetic.test_compare_tensor_cores import measured
from tests.engine.kernels.tensor_core_cases import CASES
from tests.engine.kernels.tensor_core_devices import TensorCores

CORES = {name: {format: TensorCores.of(name, format) for format in ("bf16", "f16")} for name in ("ampere", "hopper")}
LANES = np.arange(32)


def machine(
    body: str, threads: int = 32, cores: str = "hopper", shared: int = 4096, blocks: int = 1, **registers: np.ndarray
) -> Machine:
    """A machine with a program that has not run yet. registers: what they hold before it."""
    text = f""".visible .entry test()
        .reqntid {threads}
        {{ .reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<99>; .reg .b64 %rd<9>;
        mov.u32 %r0, %tid.x; {body} ret; }}"""
    made = Machine(parse(text), blocks, range(blocks), (), GlobalMemory([]), shared, CORES[cores])
    for name, values in registers.items():
        kind = made.kind_of(f"%{name}")
        made.register(f"%{name}", kind)[:] = values.astype(made.register(f"%{name}", kind).dtype)
    return made


def held(made: Machine, *names: str, order: int = 0) -> list[np.ndarray]:
    """Registers after the program."""
    made.run(order)
    return [made.register(f"%{name}", made.kind_of(f"%{name}")) for name in names]


# Data Movement and Conversion Instructions: shfl.sync


def shuffled(mode: str, lane: int, b: int, c: int) -> int:
    """The lane that a thread gets its value from: the section's own lines."""
    b, clamp, mask = b & 31, c & 31, c >> 8 & 31
    last, first = (lane & mask) | (clamp & ~mask & 31), lane & mask
    j = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": first | (b & ~mask & 31)}[mode]
    return j if (j >= last if mode == "up" else j <= last) else lane


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shuffles_follow_their_section(mode: str) -> None:
    source = np.random.default_rng(0).integers(0, 2**32, 64)
    for c in (31, 0, 0x1C1F, 0x181F, 0x1000, 15):
        for b in (0, 1, 5, 16, 31, 33):
            made = machine(f"shfl.sync.{mode}.b32 %r2, %r1, {b}, {c}, -1;", 64, r1=source)
            expected = [source[warp + shuffled(mode, lane, b, c)] for warp in (0, 32) for lane in range(32)]
            assert held(made, "r2")[0].tolist() == expected, (b, c)
    with pytest.raises(DivergenceError):
        machine("setp.lt.u32 %p1, %r0, 7; @%p1 shfl.sync.idx.b32 %r2, %r0, 0, 31, -1;").run(0)


def test_sums_of_a_warp_wrap_and_stay_in_it() -> None:
    values = np.arange(64) * 2**26 + 1
    found = held(machine("redux.sync.add.s32 %r2, %r1, %r3;", 64, r1=values, r3=np.full(64, 2**32 - 1)), "r2")[0]
    assert found.tolist() == [int(values[:32].sum()) & 2**32 - 1] * 32 + [int(values[32:].sum()) & 2**32 - 1] * 32


# Control Flow Instructions, Predicated Execution


@pytest.mark.parametrize("order", [0, 1, -1])
def test_threads_part_and_meet_again(order: int) -> None:
    body = """mov.b32 %r1, 0; and.b32 %r2, %r0, 7;
        $LOOP: setp.ge.s32 %p1, %r1, %r2; @%p1 bra $DONE; add.s32 %r1, %r1, 1; bra.uni $LOOP;
        $DONE: setp.eq.b32 %p2, %r2, 3; @!%p2 add.s32 %r1, %r1, 100;
        bar.sync 0; shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1;"""
    ids = np.arange(128)
    own = ids % 8 + np.where(ids % 8 == 3, 0, 100)
    assert held(machine(body, 64, blocks=2), "r1", "r3", order=order)[1].tolist() == own[ids ^ 1].tolist()


def test_barriers_that_not_all_threads_come_to_are_errors() -> None:
    for body in (
        "setp.lt.u32 %p1, %r0, 32; @%p1 bar.sync 0;",
        "setp.lt.u32 %p1, %r0, 40; @%p1 bra $L; bar.sync 0; $L:",
    ):
        with pytest.raises(DivergenceError):
            machine(body, 64).run(0)
    with pytest.raises(UnknownPtxError):
        machine("bar.sync 1;").run(0)
    with pytest.raises(DivergenceError):
        machine("cp.async.ca.shared.global [%r1], [%rd1], 0x4, %r2;", r1=LANES * 4, r2=LANES * 0).run(0)


# Matrices of 8 by 8: Warp-level matrix load instruction: ldmatrix; stmatrix


@pytest.mark.parametrize(("many", "transposed"), [(1, ""), (2, ""), (4, ""), (4, ".trans"), (1, ".trans")])
def test_matrices_are_loaded_and_stored_row_by_row(many: int, transposed: str) -> None:
    rng = np.random.default_rng(many)
    words = rng.integers(0, 2**16, (many, 8, 8))
    order = rng.permutation(8 * many)
    rows = np.full(32, 4000)
    rows[: 8 * many] = order * 16 + 64
    memory = np.zeros((8 * many, 8), np.uint16)
    memory[order] = words.reshape(-1, 8)
    names = ", ".join(f"%r{10 + i}" for i in range(many))
    made = machine(f"ldmatrix.sync.aligned.m8n8.x{many}{transposed}.shared.b16 {{{names}}}, [%r1+64];", r1=rows - 64)
    made.shared._bytes[64 : 64 + memory.nbytes] = memory.view(np.uint8).reshape(-1)
    for i, found in enumerate(held(made, *(f"r{10 + i}" for i in range(many)))):
        matrix = words[i].T if transposed else words[i]
        expected = [int(matrix[t // 4, t % 4 * 2]) | int(matrix[t // 4, t % 4 * 2 + 1]) << 16 for t in range(32)]
        assert found.tolist() == expected
        if not transposed:
            back = machine("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r1], {%r2};", r1=LANES % 8 * 16, r2=found)
            back.run(0)
            assert (back.shared._bytes[:128].view(np.uint16).reshape(8, 8) == words[i]).all()


# Tensor cores


@pytest.mark.parametrize("format", ["bf16", "f16"])
@pytest.mark.parametrize("name", CORES)
def test_tensor_cores_are_those_of_the_reference(name: str, format: str) -> None:
    arithmetic, cores = ARITHMETICS[name], CORES[name][format]
    valued = 0
    for number, case in enumerate(CASES.values()):
        a, b = (x.float() for x in case(format, np.random.default_rng(number), 24, cores.terms, 3))
        c = torch.where(torch.rand(24, 3) < 0.5, 0, (a @ b).nan_to_num(0, 0, 0) * 2.0 ** torch.randint(-30, 9, (24, 3)))
        found = cores.dot(c.numpy(), a.double().numpy(), b.double().numpy()) + np.float32(0)
        words = [x.contiguous().view(torch.int32).numpy().view(np.uint32) for x in (c, a, b.T)]
        for row in range(24):
            for column in range(3):
                sides = words[1][row].tolist(), words[2][column].tolist()
                try:
                    expected = group(arithmetic, format, int(words[0][row, column]), *sides)
                except NoTensorCoreValueError:
                    continue
                valued += 1
                assert found[row, column].view(np.uint32) == expected
    assert valued > 400


def packed(words: np.ndarray, row: np.ndarray, column: np.ndarray) -> np.ndarray:
    return words[row, column].astype(np.uint32) | words[row, column + 1].astype(np.uint32) << np.uint32(16)


INTEGERS = "m16n8k32.row.col.satfinite.s32.s8.s8.s32"


def by_mma(format: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """f32[16, 8] of a: words[16, 16], b: words[16, 8], c: f32[16, 8] (Matrix Fragments for mma.m16n8k16); or int32, of
    words of two integers (Matrix Fragments for mma.m16n8k32)."""
    g, t = LANES // 4, LANES % 4
    registers = {f"r{10 + i}": packed(a, g + 8 * (i % 2), 2 * t + 8 * (i // 2)) for i in range(4)}
    registers |= {f"r{14 + i}": packed(b.T, g, 2 * t + 8 * i) for i in range(2)}
    registers |= {f"r{16 + i}": c[g + 8 * (i // 2), 2 * t + i % 2].view(np.uint32) for i in range(4)}
    text = "{%r20,%r21,%r22,%r23}, {%r10,%r11,%r12,%r13}, {%r14,%r15}, {%r16,%r17,%r18,%r19}"
    types = f"m16n8k16.row.col.f32.{format}.{format}.f32" if format != "s8" else INTEGERS
    made = machine(f"mma.sync.aligned.{types} {text};", cores="ampere", **registers)
    out = np.zeros((16, 8), c.dtype)
    for i, found in enumerate(held(made, "r20", "r21", "r22", "r23")):
        out[g + 8 * (i // 2), 2 * t + i % 2] = found.view(c.dtype)
    return out


def in_shared_memory(
    matrices: tuple[np.ndarray, np.ndarray], width: int, transposed: str
) -> tuple[np.ndarray, list[int]]:
    """Bytes of shared memory with words[lines, 16], whose pieces of 16 bytes lie as Swizzling Modes says of a width of
    128, 64 or 32 bytes; and descriptors. transposed: of each, whether lines are contiguous."""
    memory, descriptors = np.zeros(2 * 16384, np.uint8), []
    for place, (matrix, major) in enumerate(zip(matrices, transposed, strict=True)):
        for line, term in np.ndindex(matrix.shape):
            # A pattern has 8 rows of the width; rows are lines, or terms.
            row, along = (term, line) if major == "1" else (line, term)
            outer, inner = along // (width // 2), along % (width // 2)
            piece = inner // 8 ^ (row % 8) * (width // 16) // 8
            at = place * 16384 + row // 8 * 1024 + row % 8 * width + piece * 16 + inner % 8 * 2 + outer * 2048
            memory.view(np.uint16)[at // 2] = matrix[line, term]
        descriptors.append(place * 16384 >> 4 | 2048 >> 4 << 16 | 1024 >> 4 << 32 | {128: 1, 64: 2, 32: 3}[width] << 62)
    return memory, descriptors


def by_wgmma(
    format: str, a: np.ndarray, b: np.ndarray, c: np.ndarray, width: int = 128, transposed: str = "00"
) -> np.ndarray:
    """f32[64, 64] of a: words[64, 16], b: words[16, 64], c: f32[64, 64]. width, transposed: as `in_shared_memory`."""
    memory, descriptors = in_shared_memory((a, b.T), width, transposed)
    thread = np.arange(128)
    row, column = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2
    places = [(row + i // 2 % 2 * 8, column + i // 4 * 8 + i % 2) for i in range(32)]
    registers = {f"r{20 + i}": c[at].view(np.uint32) for i, at in enumerate(places)}
    registers |= {f"rd{i}": np.full(128, one, dtype=np.uint64) for i, one in enumerate(descriptors)}
    sums = ",".join(f"%r{20 + i}" for i in range(32))
    types = f"m64n64k16.f32.{format}.{format}" if format != "s8" else "m64n64k32.s32.s8.s8"
    signs = f", 1, 1, {transposed[0]}, {transposed[1]}" if format != "s8" else ""
    body = f"""fence.proxy.async.shared::cta; mov.pred %p1, -1; wgmma.fence.sync.aligned;
        wgmma.mma_async.sync.aligned.{types} {{{sums}}}, %rd0, %rd1, %p1{signs};
        wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"""
    made = machine(body, 128, shared=len(memory), **registers)
    made.shared._bytes[:] = memory
    out = np.zeros((64, 64), c.dtype)
    for at, found in zip(places, held(made, *(f"r{20 + i}" for i in range(32))), strict=True):
        out[at] = found.view(c.dtype)
    return out


IN_TENSORS = (
    "setp.lt.u32 %p2, %r0, 32; @%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 64;",
    "bar.sync 0;",
    "ld.shared.b32 %r2, [%r1]; add.s32 %r3, %r3, %r2; elect.sync %r5|%p3, -1; and.pred %p3, %p2, %p3;"
    "@%p3 mbarrier.init.shared::cta.b64 [%r1+8], 1; tcgen05.st.sync.aligned.32x32b.x64.b32 [%r3], {SUMS};"
    "st.shared.b16 [%r7], %rs0; tcgen05.wait::st.sync.aligned;",
    "fence.proxy.async.shared::cta;",
    "bar.sync 0;",
    "@%p3 tcgen05.mma.cta_group::1.kind::f16 [%r2], %rd0, %rd1, %r6, %p2;",
    "@%p3 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+8];",
    "mov.b32 %r4, 0; { .reg .pred complete; waitLoop: mbarrier.try_wait.parity.shared::cta.b64 complete, [%r1+8], %r4;"
    "@!complete bra.uni waitLoop; }",
    "tcgen05.ld.sync.aligned.32x32b.x64.b32 {SUMS}, [%r3]; tcgen05.wait::ld.sync.aligned;",
)
"""A product into tensor memory, and what orders it."""


def by_tcgen05(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, width: int = 128, transposed: str = "00", order: int = 0,
    missing: int | None = None,
) -> np.ndarray:  # fmt: skip
    """f32[128, 64] of a: words[128, 16], b: words[16, 64] in BF16, c: f32[128, 64]. missing: of IN_TENSORS."""
    memory, descriptors = in_shared_memory((a, b.T), width, transposed)
    ids, end = np.arange(128), len(memory)
    form = 1 << 4 | 1 << 7 | 1 << 10 | int(transposed[0]) << 15 | int(transposed[1]) << 16 | 64 // 8 << 17 | 8 << 24
    registers = {"r1": ids * 0 + end, "r3": ids // 32 * 32 << 16, "r6": ids * 0 + form, "r7": ids * 2}
    registers |= {f"rd{i}": np.full(128, one, dtype=np.uint64) for i, one in enumerate(descriptors)}
    registers |= {f"r{20 + i}": c[:, i].copy().view(np.uint32) for i in range(64)}
    registers["rs0"] = memory.view(np.uint16)[:128]
    body = "".join(step for place, step in enumerate(IN_TENSORS) if place != missing)
    made = machine(body.replace("SUMS", ",".join(f"%r{20 + i}" for i in range(64))), 128, shared=end + 16, **registers)
    made.shared._bytes[:end] = memory
    return np.stack(held(made, *(f"r{20 + i}" for i in range(64)), order=order), 1).view(np.float32)


@pytest.mark.parametrize("missing", [None, 1, 3, 4, 6, 7])
def test_products_into_tensor_memory_are_right_and_waited_for(missing: int | None) -> None:
    (a, left), (b, right), (c, _) = small_integers(128, 16), small_integers(16, 64), small_integers(128, 64)
    for order in (0, 1, -1):
        if missing is not None:
            with pytest.raises((RaceError, DivergenceError, MemoryFaultError)):
                by_tcgen05(left, right, c, order=order, missing=missing)
            continue
        for width, transposed in ((128, "00"), (128, "01"), (128, "10"), (128, "11"), (64, "00"), (32, "00")):
            assert (by_tcgen05(left, right, c, width, transposed, order) == a @ b + c).all(), (width, transposed)


def small_integers(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Integers, and their words in BF16."""
    numbers = np.random.default_rng(len(shape) + shape[0]).integers(-9, 9, shape).astype(np.float32)
    return numbers, numbers.view(np.uint32) >> 16


def test_products_have_their_elements_where_the_isa_has_them() -> None:
    (a, left), (b, right), (c, _) = small_integers(16, 16), small_integers(16, 8), small_integers(8, 16)
    assert (by_mma("bf16", left, right, c.T.copy()) == a @ b + c.T).all()
    (a, left), (b, right), (c, _) = small_integers(64, 16), small_integers(16, 64), small_integers(64, 64)
    for width in (128, 64, 32):
        for transposed in ("00", "01", "10", "11") if width == 128 else ("00",):
            assert (by_wgmma("bf16", left, right, c, width, transposed) == a @ b + c).all(), (width, transposed)


def test_products_of_integers_are_exact_and_may_not_leave_int32() -> None:
    rng = np.random.default_rng(0)
    for rows, columns, multiply in ((16, 8, by_mma), (64, 64, by_wgmma)):
        a, b = (rng.integers(-128, 128, (lines, 32)).astype(np.int8) for lines in (rows, columns))
        a[0] = b[0] = -128
        c = rng.integers(-(2**30), 2**30, (rows, columns)).astype(np.int32)
        exact = c + a.astype(np.int64) @ b.T.astype(np.int64)
        assert (multiply("s8", a.view(np.uint16), b.view(np.uint16).T, c) == exact).all()
        c[0, 0] = 2**31 - 1 - 32 * 2**14
        assert multiply("s8", a.view(np.uint16), b.view(np.uint16).T, c)[0, 0] == 2**31 - 1
        c[0, 0] += 1
        with pytest.raises(OverflowError):
            multiply("s8", a.view(np.uint16), b.view(np.uint16).T, c)


def test_products_are_those_of_real_cards() -> None:
    """A product by mma has 8 results on its diagonal, one by wgmma 64."""
    tried: dict[str, int] = {}
    for results in read_sets(measured()):
        native = results.arithmetic is ARITHMETICS["hopper"]
        if results.format == "tf32" or results.arithmetic is ARITHMETICS["volta"]:
            continue
        many, rows, multiply = (64, 64, by_wgmma) if native else (8, 16, by_mma)
        left, right = (
            one >> 16 if results.format == "bf16" else one.view(np.float32).astype(np.float16).view(np.uint16)
            for one in (results.a, results.b)
        )
        for first in range(0, 5000 - many, 500):
            some, terms = slice(first, first + many), left.shape[1]
            a, b, c = (
                np.zeros((rows, 16), np.uint32),
                np.zeros((16, many), np.uint32),
                np.zeros((rows, many), np.uint32),
            )
            a[:many, :terms], b[:terms] = left[some], right[some].T
            np.fill_diagonal(c, results.c[some])
            found = np.diagonal(multiply(results.format, a, b, c.view(np.float32))).copy()
            assert (found.view(np.uint32) == results.d[some]).all(), (results.gpu, results.format)
            tried[results.gpu] = tried.get(results.gpu, 0) + many
    assert {"A100", "Ada", "H100", "H200", "B200"} <= set(tried) and sum(tried.values()) > 3000


# Memory: Memory Consistency Model, Asynchronous copy, Async Proxy

STORE, LOAD = "st.shared.b32 [%r1], %r0;", "ld.shared.b32 %r3, [%r2];"
ORDERED = {
    "a word of the same thread": (STORE + "ld.shared.b32 %r3, [%r1];", ""),
    "a word of another warp": (STORE + "{}" + LOAD, "bar.sync 0;"),
    "a word that another warp has read": (LOAD + "{}" + STORE, "bar.sync 0;"),
    "a word that another warp has written": (STORE + "{} st.shared.b32 [%r2], %r0;", "bar.sync 0;"),
    "a word of another thread": (STORE + "{} ld.shared.b32 %r3, [%r4];", "bar.warp.sync -1;"),
    "a byte of a word": (STORE + "{} ld.shared.b8 %rs1, [%r2+3];", "bar.sync 0;"),
    "a copy": (
        "cp.async.ca.shared.global [%r1], [%rd1], 0x4, %r5; cp.async.commit_group; {} ld.shared.b32 %r3, [%r1];"
        "cp.async.wait_group 0;",
        "cp.async.wait_group 0;",
    ),
    "an older copy": (
        "cp.async.ca.shared.global [%r1], [%rd1], 0x4, %r5; cp.async.commit_group; cp.async.ca.shared.global"
        " [%r1+2048], [%rd1], 0x4, %r5; cp.async.commit_group; cp.async.wait_group {}; ld.shared.b32 %r3, [%r1];"
        "cp.async.wait_group 0;",
        "1",
    ),
    "a copy of another warp": (
        "cp.async.ca.shared.global [%r1], [%rd1], 0x4, %r5; cp.async.commit_group; cp.async.wait_group 0; {}" + LOAD,
        "bar.sync 0;",
    ),
}
INSTEAD = {"an older copy": "2"}


def racing(body: str, order: int = 0) -> list[int]:
    """What threads read: of their own word r1, of one of another warp r2, of one of their warp r4."""
    ids = np.arange(64)
    places = {"r1": ids * 4, "r2": (ids ^ 32) * 4, "r4": (ids ^ 1) * 4, "r5": ids * 0}
    return held(machine(body, 64, **places, rd1=ids * 0), "r3", order=order)[0].tolist()


@pytest.mark.parametrize("what", ORDERED)
def test_accesses_that_nothing_orders_are_reported(what: str) -> None:
    body, ordering = ORDERED[what]
    for order in (0, 1, -1):
        found = racing(body.format(ordering), order)
        if what in ("a word of another warp", "a word of the same thread", "a word of another thread"):
            other = {"a word of another warp": 32, "a word of another thread": 1}.get(what, 0)
            assert found == [thread ^ other for thread in range(64)]
        if ordering:
            with pytest.raises(RaceError):
                racing(body.format(INSTEAD.get(what, "")), order)


def test_words_that_threads_write_alike_are_no_race() -> None:
    assert set(racing("mov.b32 %r6, 0; st.shared.b32 [%r6], 7; bar.sync 0; ld.shared.b32 %r3, [%r6];")) == {7}
    with pytest.raises(RaceError):
        racing("mov.b32 %r6, 0; st.shared.b32 [%r6], %r0;")


def test_memory_that_is_not_there_or_not_aligned_is_an_error() -> None:
    tensor = torch.arange(64, dtype=torch.int32)
    text = ".visible .entry test(.param .u64 test_param_0) .reqntid 32 { .reg .b32 %r<9>; .reg .b64 %rd<9>; "
    text += "mov.u32 %r0, %tid.x; ld.param.b64 %rd1, [test_param_0]; mad.wide.u32 %rd2, %r0, STEP, %rd1; BODY; ret; }"

    def run(body: str, step: int) -> None:
        program = parse(text.replace("BODY", body).replace("STEP", str(step)))
        execute(program, range(1), [tensor.data_ptr().to_bytes(8, "little")], [tensor], 64, CORES["ampere"])

    run("ld.global.v2.b32 {%r1, %r2}, [%rd2]; add.s32 %r1, %r1, %r2; st.global.b32 [%rd2], %r1", 8)
    assert tensor[:4].tolist() == [1, 1, 5, 3]
    wrong = {"ld.global.b32 %r1, [%rd2]": 2, "st.shared.b32 [%r0+64], %r0": 1, "st.shared.b32 [%r0], %r0": 1,
             "ld.global.v2.b32 {%r1, %r2}, [%rd2]": 4, "ld.global.b32 %r1, [%rd2+256]": 4}  # fmt: skip
    for body, step in wrong.items():
        with pytest.raises(MemoryFaultError):
            run(body, step)


def test_programs_with_parts_that_are_not_known_are_errors() -> None:
    right = ".visible .entry f() .reqntid 32 { .reg .b32 %r<3>; ret; }"
    assert len(parse(right).instructions) == 1
    turned = [right.replace("ret", one) for one in ("Ret", "mov.b32 %r1, [%r2-4]", "@%r1 ret")]
    for wrong in (right + right, right.replace(" .reqntid 32", ""), *turned):
        with pytest.raises(UnknownPtxError):
            parse(wrong)
    assert replace(parse(right), name="g").without(0).places("ret") == []


PRODUCT = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r20,%r21,%r22,%r23}, %rd0, %rd1, 0, 1, 1, 0, 0;"
STEPS = (
    "st.shared.b32 [%r1], %r0;",
    "bar.sync 0;",
    "fence.proxy.async.shared::cta;",
    f"wgmma.fence.sync.aligned; {PRODUCT} wgmma.commit_group.sync.aligned;",
    "wgmma.wait_group.sync.aligned 0;",
    "bar.sync 0;",
    "st.shared.b32 [%r1], %r0; wgmma.wait_group.sync.aligned 0;",
)


@pytest.mark.parametrize("missing", [None, 1, 2, 4, 5])
def test_a_product_reads_what_is_fenced_and_is_waited_for(missing: int | None) -> None:
    body = "".join(step for place, step in enumerate(STEPS) if place != missing)
    ids = np.arange(128)
    descriptors = {"rd0": ids * 0 + (1 << 62), "rd1": ids * 0 + (1 << 62)}
    for order in (0, 1, -1):
        made = machine(body, 128, shared=8192, r1=ids * 4, **descriptors)
        if missing is None:
            made.run(order)
        else:
            with pytest.raises(RaceError):
                made.run(order)


def _plain(descriptor: int, lines: int, transposed: bool) -> np.ndarray:
    return (descriptor & 0x3FFF) * 16 + np.arange(lines)[:, None] * 128 + np.arange(16) * 2


def _turned(registers: tuple[str, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    row, column = np.arange(128) // 32 * 16 + np.tile(LANES // 4, 4), np.tile(LANES % 4 * 2, 4)
    return [(row + 8 * (at % 2), column + 8 * (at // 4) + at // 2 % 2) for at in range(len(registers))]


def _first_lane(threads: Threads, operand: str, kind: str) -> np.ndarray:
    return np.resize(Threads.read(threads, operand, kind)[:1], threads.ids.shape)


def _forgotten(memory: SharedMemory, threads: np.ndarray, cells: np.ndarray) -> None:
    memory._multiplied[cells] -= 1


MATRICES, RACES = (
    test_products_have_their_elements_where_the_isa_has_them,
    test_accesses_that_nothing_orders_are_reported,
)
FENCES, PARTS = test_a_product_reads_what_is_fenced_and_is_waited_for, test_threads_part_and_meet_again
MISTAKES = {
    "rows of fragments": (ptx_machine, "_ROW", LANES % 8, MATRICES),
    "columns of fragments": (ptx_machine, "_PAIR", LANES % 4, MATRICES),
    "no swizzle": (ptx_machine, "_swizzled", _plain, MATRICES),
    "registers of sums": (ptx_machine, "_of_sums", _turned, MATRICES),
    "formats": (ptx_machine, "_numbers", lambda words, format: words.view(np.float16).astype(float), MATRICES),
    "one thread's value for all": (Threads, "read_all", _first_lane, lambda: test_shuffles_follow_their_section("up")),
    "sums of warps": (Threads, "sets", lambda self, of=32: 1, test_sums_of_a_warp_wrap_and_stay_in_it),
    "guards": (Threads, "guarded", lambda self, guard, negated: self, lambda: PARTS(0)),
    "negated guards": (Threads, "guarded", lambda self, guard, negated: GUARDED(self, guard, False), lambda: PARTS(1)),
    "barriers": (Machine, "_release", lambda self, units: [unit.waiting.clear() for unit in units], lambda: PARTS(0)),
    "races": (SharedMemory, "_check", lambda *of: None, lambda: RACES("a word of another warp")),
    "races in a warp": (SharedMemory, "_check", lambda *of: None, lambda: RACES("a word of another thread")),
    "reads": (SharedMemory, "_note", lambda *of: None, lambda: RACES("a word that another warp has read")),
    "bytes": (SharedMemory, "_cells", lambda self, places, width: places[:, None], lambda: RACES("a byte of a word")),
    "copies on their way": (SharedMemory, "_idle", lambda *of: None, lambda: RACES("a copy")),
    "products on their way": (SharedMemory, "_idle", lambda *of: None, lambda: FENCES(4)),
    "fences": (SharedMemory, "begin_product", lambda self, ids, at: (at.astype(np.uint16), at[0]), lambda: FENCES(2)),
    "reads of products": (SharedMemory, "end_product", _forgotten, lambda: FENCES(5)),
    "lanes of tensor memory": (
        TensorMemory,
        "places",
        lambda self, blocks, at: (blocks, at >> 16, (at & 0xFFFF) // 2),
        lambda: TENSORS(None),
    ),
    "products into it on their way": (
        TensorMemory,
        "places",
        lambda self, blocks, at: (blocks, at >> 16, at & 0xFFFF),
        lambda: TENSORS(7),
    ),
    "phases": (TensorMemory, "has_ended", lambda *of: True, lambda: TENSORS(None)),
    "alignment": (
        ptx_machine,
        "aligned",
        lambda at, width: at,
        test_memory_that_is_not_there_or_not_aligned_is_an_error,
    ),
    "sizes": (GlobalMemory, "_parts", lambda *of: iter(()), test_memory_that_is_not_there_or_not_aligned_is_an_error),
}
GUARDED, TENSORS = Threads.guarded, test_products_into_tensor_memory_are_right_and_waited_for


def _fails(check: Callable[..., None]) -> bool:
    try:
        check()
    except (Exception, pytest.fail.Exception):
        return True
    return False


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_of_an_interpreter_are_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, mistake, check = MISTAKES[what]
    check()
    monkeypatch.setattr(owner, name, mistake)
    assert _fails(check)
