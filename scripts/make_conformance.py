"""Writes the vectors, receipts and the manifest of conformance/, by which other implementations are held against us.

    python scripts/make_conformance.py          writes the files
    python scripts/make_conformance.py --check  exits with 1 if a file on disk is not what would be written

The results of vectors are those of the reference (`roundlog.adjudication`), by way of descriptors; receipts are
those of runs of the jobs in conformance/jobs, and of a text of the model in conformance/models. Jobs and models are
data, and never made again: conformance/README.md has the commands that made them. Cases are pairs of corner numbers,
numbers drawn by a hash, and sums that cancel, so that no file changes without a reason.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from generated import write_or_check
from roundlog import Job, Trainer
from roundlog.adjudication import Chunk, NoAnswer
from roundlog.adjudication.adjudicate import DisputedStep, adjudicate, encode
from roundlog.capture.huggingface import Sampling
from roundlog.commitments import CHUNK_SIZE
from roundlog.definitions import DEFINITIONS, FLOATS, OperatorKind
from roundlog.descriptors import describe
from roundlog.generation import Generator, load_model, make_receipt, prompt_tokens
from roundlog.number_format import Format, narrow_float32
from roundlog.operators import Direct, compute_narrow, operator
from roundlog.program import DType, Node, Program, TensorType
from roundlog.training.receipt import MachineProfile, Receipt, Versions

FOLDER = Path(__file__).resolve().parent.parent / "conformance"
JOBS = FOLDER / "jobs"
MODEL = FOLDER / "models" / "llama"
SIGNED = "dropout_adamw"
"""The job whose receipt is signed."""
KEY = "0x" + sha256(b"tiebreak/conformance").hexdigest()
"""A key that everybody knows: what it signs means nothing."""
SEED, STEP = 2**63 + 5, 3
SAMPLING = Sampling(temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.1)
TEXT_SEED, NEW_TOKENS = 19, 12
"""Seed and most tokens of the text of the model: those of the job `llama`, too."""

_I64, _BOOL, _F32 = DType.I64, DType.BOOL, DType.F32
SCALAR = TensorType((), _F32)


@dataclass(frozen=True)
class Tensor:
    """Words of a tensor: bit patterns of numbers, int64 as they are, 0 or 1."""

    dtype: DType
    shape: tuple[int, ...]
    words: Sequence[int]

    def plain(self) -> dict[str, Any]:
        """The tensor as JSON has it, words in hexadecimal."""
        digits = 2 * self.dtype.itemsize
        return {
            "dtype": str(self.dtype),
            "shape": list(self.shape),
            "words": [f"{word % 16**digits:0{digits}x}" for word in self.words],
        }


@dataclass(frozen=True)
class Case:
    """An operator's inputs and attributes; output: its type, where these do not say it."""

    name: str
    inputs: Sequence[Tensor]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    output: TensorType = SCALAR
    bits: int = 32


class Words:
    """Chunks of tensors, by number."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """tensors: those that may be read."""
        self._bytes = [b"".join(encode(x.dtype, word) for word in x.words) for x in tensors]

    def payload(self, chunk: Chunk) -> bytes:
        """The bytes of a chunk."""
        return self._bytes[chunk.tensor][chunk.index * CHUNK_SIZE :][:CHUNK_SIZE]


def number_format(dtype: DType) -> Format:
    """The format of a dtype of numbers."""
    found = dtype.number_format()
    assert found is not None
    return found


def corners(format: Format) -> list[int]:
    """Words of special numbers, of both signs: zero, subnormal numbers, both ends of the normal ones, 1 and its
    neighbours, a half, the largest integers with a fraction, an infinity; and NaN."""
    ulp, one = 1 << format.fraction_bits, format.largest_exponent << format.fraction_bits
    found = [0, 1, ulp - 1, ulp, one - ulp, one - 1, one, one + 1, one + ulp // 2 * 3, one + ulp * 3 + ulp // 8]
    found += [one + (format.fraction_bits - 1) * ulp + 3, format.infinity - 1, format.infinity]
    return [sign | word for sign in (0, format.sign) for word in found] + [format.nan]


def drawn(what: str, format: Format, count: int, spread: int = 0) -> list[int]:
    """Words drawn by a hash: any finite ones, or numbers within a factor of 2^spread of 1."""
    words: list[int] = []
    for i in range(16 * count):
        digest = sha256(f"tiebreak/conformance/{what}/{i}".encode()).digest()
        word = int.from_bytes(digest[:4], "big") % (2 * format.sign)
        if spread:
            exponent = format.largest_exponent - spread + digest[5] % (2 * spread + 1)
            word = word & (format.sign | (1 << format.fraction_bits) - 1) | exponent << format.fraction_bits
        if word & ~format.sign < format.infinity:
            words.append(word)
    return words[:count]


def tensor(what: str, dtype: DType, *shape: int, spread: int = 3) -> Tensor:
    """Numbers near 1, or int64 and bool, drawn by a hash."""
    count = math.prod(shape)
    if dtype in FLOATS:
        return Tensor(dtype, shape, drawn(what, number_format(dtype), count, spread))
    words = [int.from_bytes(sha256(f"{what}/{i}".encode()).digest()[:8], "big", signed=True) for i in range(count)]
    return Tensor(dtype, shape, [word % 2 for word in words] if dtype == _BOOL else words)


def integers(*values: int) -> Tensor:
    """A line of int64."""
    return Tensor(_I64, (len(values),), values)


def shaped(x: Tensor, *shape: int) -> Tensor:
    """Tensor of the same words in another shape."""
    return replace(x, shape=shape)


EXTREME_INTEGERS = (0, 1, -1, 7, 2**53 + 1, 2**24 + 1, -(2**24) - 3, 2**63 - 1, -(2**63), 2**62 + 2**38, 2**40 + 255)


def special(dtype: DType, what: str) -> list[int]:
    """Words of a dtype that an operator has to be tried with."""
    if dtype in FLOATS:
        format = number_format(dtype)
        return corners(format) + drawn(what, format, 12) + drawn(what, format, 12, 6)
    return [0, 1] if dtype == _BOOL else list(EXTREME_INTEGERS)


def elementwise() -> Iterator[Case]:
    """Operators that take one element of each input: special words, and every pair of a few of them."""
    for name, definition in DEFINITIONS.items():
        for one in definition.formats:
            if definition.kind not in (OperatorKind.EXACT, OperatorKind.INEXACT) or definition.attributes:
                continue
            if name == "matmul" or None in one.inputs:
                continue
            dtypes = [dtype for dtype in one.inputs if dtype is not None]
            words = special(dtypes[0], name)
            if len(dtypes) == 1:
                yield Case(name, [Tensor(dtypes[0], (len(words),), words)])
                continue
            few = words[:13:2] + words[13:26:4] + words[26:29] if dtypes[0] in FLOATS else words
            pairs = [(a, b) for a in few for b in few] + list(zip(words[29:], words[:28:-1], strict=True))
            yield Case(name, [Tensor(dtypes[0], (len(pairs),), [pair[k] for pair in pairs]) for k in (0, 1)])
    yield Case("add", [tensor("rows", _F32, 3, 1), tensor("columns", _F32, 4)])
    for name, attributes in (("exp", {}), ("sum", {"dims": (1,)}), ("amax", {"dims": (1,)}), ("amin", {"dims": (1,)})):
        yield Case(name, [tensor("narrow", _F32, 4, 6)], attributes, bits=24)
    for name in ("add", "sub", "mul", "div", "sqrt", "neg", "abs", "floor", "maximum", "minimum"):
        inputs = [tensor(f"narrow {k}", _F32, 4, 6) for k in range(DEFINITIONS[name].arity)]
        yield Case(name, inputs, bits=24)
    yield Case("to_f32", [integers(*EXTREME_INTEGERS)], bits=24)


def movement(dtype: DType) -> Iterator[Case]:
    """Operators that copy bits."""
    words = special(dtype, "movement")
    x = Tensor(dtype, (2, 3, 4), (words * 24)[:24])
    yield Case("reshape", [x], {"shape": (4, 6)})
    yield Case("permute", [x], {"dims": (2, 0, 1)})
    yield Case("expand", [Tensor(dtype, (2, 1, 3), x.words[:6])], {"shape": (2, 4, 3)})
    yield Case("slice", [x], {"dim": 2, "start": 1, "stop": 4, "step": 2})
    yield Case("flip", [x], {"dim": 1})
    yield Case("cat", [x, Tensor(dtype, (2, 1, 4), x.words[:8]), x], {"dim": 1})
    yield Case("pad", [x, Tensor(dtype, (), words[1:2])], {"low": (0, 1, 2), "high": (1, 0, 1)})
    yield Case("gather", [x, shaped(integers(2, 0, 1, 1, 0, 0, 2, 2), 2, 1, 4)], {"dim": 1})
    yield Case("take", [shaped(x, 6, 4), shaped(integers(5, 0, 5, 2), 2, 2)])
    chosen = [Tensor(_BOOL, (2, 1), (1, 0)), Tensor(dtype, (2, 3), x.words[:6]), Tensor(dtype, (3,), x.words[6:9])]
    yield Case("where", chosen)
    if dtype in FLOATS:
        finite = [word for word in words if word & ~number_format(dtype).sign < number_format(dtype).infinity]
        yield Case("store", [Tensor(dtype, (len(finite),), finite)], {"slot": 0})
    if dtype == _F32:
        yield Case("loss", [Tensor(dtype, (), words[9:10])])
    literal = [word % 2**64 - (word % 2**64 >> 63 << 64) for word in words] if dtype == _I64 else words[:32]
    yield Case("constant", [], {"bits": tuple(literal)}, TensorType((len(literal),), dtype))
    yield Case("constant", [], {"bits": (literal[1],)}, TensorType((2, 3), dtype))


def sums(dtype: DType) -> Tensor:
    """Rows of eight terms, [18, 8]: ties, near ties, cancellations, infinities, NaN, zeros, numbers drawn by a hash."""
    format = number_format(dtype)
    one, ulp, sign = format.largest_exponent << format.fraction_bits, 1 << format.fraction_bits, format.sign
    half = one - (format.fraction_bits + 1) * ulp
    tiny, inf, nan = 1, format.infinity, format.nan
    rows = [
        [one, half, 0, 0, 0, 0, 0, 0],
        [one + 1, half, 0, 0, 0, 0, 0, 0],
        [one, half, tiny, 0, 0, 0, 0, 0],
        [one, half, sign | tiny, 0, 0, 0, 0, 0],
        [inf - 1, inf - 1, sign | inf - 1, sign | inf - 1, tiny, 0, 0, 0],
        [inf - 1, inf - 1, 0, 0, 0, 0, 0, 0],
        [sign, sign, sign, sign, sign, sign, sign, sign],
        [one, sign | one, sign, 0, 0, 0, 0, 0],
        [inf, one, 0, 0, 0, 0, 0, 0],
        [inf, sign | inf, 0, 0, 0, 0, 0, 0],
        [nan, one, 0, 0, 0, 0, 0, 0],
        [tiny, tiny, tiny, sign | ulp, 0, 0, 0, 0],
    ]
    rows += [drawn(f"row {i}", format, 8, spread) for i, spread in enumerate((1, 3, 8, 0, 0, 0))]
    return Tensor(dtype, (len(rows), 8), [word for row in rows for word in row])


def reductions(dtype: DType) -> Iterator[Case]:
    """Sums, extremes and products of numbers of one dtype."""
    rows, one = sums(dtype), number_format(dtype).largest_exponent << number_format(dtype).fraction_bits
    yield Case("sum", [rows], {"dims": (1,)})
    yield Case("sum", [tensor("sum", dtype, 3, 4, 5)], {"dims": (0, 2)})
    yield Case("sum", [Tensor(dtype, (2, 0), ())], {"dims": (1,)})
    for name in ("amax", "amin"):
        yield Case(name, [rows], {"dims": (1,)})
        yield Case(name, [tensor("extreme", dtype, 3, 4, 5)], {"dims": (0, 1)})
    yield Case("argmax", [rows], {"dim": 1})
    ones = Tensor(dtype, (8, 1), [one] * 8)
    yield Case("matmul", [rows, ones])
    yield Case("matmul", [tensor("left", dtype, 2, 3, 17), tensor("right", dtype, 2, 17, 4)])
    scattered = shaped(integers(*(i * 5 % 3 - (i == 7) for i in range(8))), 1, 8)
    yield Case("scatter_add", [rows, scattered], {"dim": 1, "size": 3})
    yield Case(
        "scatter_add", [tensor("scattered", dtype, 4, 3), shaped(integers(1, 0, 1, 5), 4, 1)], {"dim": 0, "size": 2}
    )
    pool = {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 1), "dilation": (1, 2)}
    yield Case("max_pool_index", [tensor("pool", dtype, 1, 2, 5, 6)], pool)
    yield Case("max_pool_index", [Tensor(dtype, (1, 1, 4, 6), [*rows.words[32:48], *rows.words[64:72]])], pool)
    window: dict[str, Any] = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}
    x, w = tensor("images", dtype, 2, 4, 5, 4), tensor("kernels", dtype, 6, 2, 3, 2)
    g = tensor("gradients", dtype, 2, 6, 3, 6)
    yield Case("conv2d", [x, w], window)
    yield Case("conv2d_grad_input", [g, w], {**window, "size": (5, 4)})
    yield Case("conv2d_grad_weight", [g, x], {**window, "size": (3, 2)})
    infinite = replace(w, words=[number_format(dtype).infinity, *w.words[1:]])
    yield Case("conv2d", [x, infinite], window)


def others() -> Iterator[Case]:
    """Reductions of integers, sources, and tensor cores."""
    line = integers(*EXTREME_INTEGERS, 5)
    yield Case("sum_i64", [shaped(line, 3, 4)], {"dims": (1,)})
    yield Case("any", [Tensor(_BOOL, (3, 3), (0, 0, 0, 0, 1, 0, 1, 1, 1))], {"dims": (1,)})
    yield Case("iota", [], {"start": -3, "step": 7}, TensorType((9,), _I64))
    yield Case("uniform", [], {"stream": 9}, TensorType((3, 7), _F32))
    for one in DEFINITIONS["tensor_core_matmul"].formats:
        dtype = one.inputs[0]
        assert dtype is not None
        name = ("hopper", "ampere", "volta")[one.code]
        for spread, terms in ((2, 40), (8, 40), (0, 16), (2, 2060)):
            rows, columns = (1, 2) if terms > 100 else (4, 3)
            a = tensor(f"left {spread} {terms}", dtype, rows, terms, spread=spread)
            b = tensor(f"right {spread} {terms}", dtype, terms, columns, spread=spread)
            yield Case("tensor_core_matmul", [a, b], {"arithmetic": name})
        unit = number_format(dtype).largest_exponent << number_format(dtype).fraction_bits
        yield Case("tensor_core_matmul", [sums(dtype), Tensor(dtype, (8, 1), [unit] * 8)], {"arithmetic": name})


def narrow_result(case: Case) -> Tensor:
    """The output of an exact operator of fewer bits than 32: the engine's, since the reference has FP32 alone."""
    given = [torch.from_numpy(np.array(x.words, np.int64)).reshape(x.shape) for x in case.inputs]
    given = [x.to(torch.int32).view(torch.float32) if case.inputs[0].dtype == _F32 else x for x in given]
    found = operator(case.name)
    assert isinstance(found, Direct)
    output = compute_narrow(found, given, case.attributes, narrow_float32(case.bits))
    words = output.contiguous().view(torch.int32).flatten().tolist()
    return Tensor(_F32, tuple(output.shape), [word % 2**32 for word in words])


def result_of(case: Case) -> Tensor:
    """The operator's output by the reference, element by element."""
    if case.bits != 32 and DEFINITIONS[case.name].kind == OperatorKind.EXACT:
        return narrow_result(case)
    kinds = [TensorType(x.shape, x.dtype) for x in case.inputs]
    nodes = [Node("data", (), {"slot": slot}, kind) for slot, kind in enumerate(kinds)]
    kind = operator(case.name).infer(kinds, case.attributes, case.output)
    nodes.append(Node(case.name, tuple(range(len(kinds))), case.attributes, kind))
    names = tuple(f"s{slot}" for slot in range(len(kinds)))
    program = Program(nodes=tuple(nodes), state_names=(), data_names=names, schedule_names=(), batch_size=1)
    descriptor = describe(program, len(kinds))
    step = DisputedStep(step=STEP, seed=SEED, batch_size=1, data_rows=1, rounding_bits=case.bits)
    words = []
    for element in range(kind.numel):
        word = adjudicate(descriptor, element, step, Words(case.inputs))
        assert not isinstance(word, NoAnswer), (case, element)
        words.append(word)
    return Tensor(kind.dtype, kind.shape, words)


def vectors() -> dict[Path, str]:
    """The file of every operator that can be tried by itself."""
    cases = [*elementwise(), *others()]
    for dtype in DType:
        cases += movement(dtype)
    for dtype in FLOATS:
        cases += reductions(dtype)
    found: dict[str, list[dict[str, Any]]] = {}
    for case in cases:
        plain: dict[str, Any] = {
            "parameters": {name: list(x) if isinstance(x, tuple) else x for name, x in case.attributes.items()},
            "inputs": [x.plain() for x in case.inputs],
            "output": result_of(case).plain(),
        }
        if case.name == "uniform":
            plain |= {"seed": SEED, "step": STEP}
        if case.bits != 32:
            plain["rounding_bits"] = case.bits
        found.setdefault(case.name, []).append(plain)
    lines = {name: ",\n".join(json.dumps(one, sort_keys=True) for one in ones) for name, ones in found.items()}
    return {FOLDER / "vectors" / f"{name}.json": f'{{"cases": [\n{text}\n]}}\n' for name, text in lines.items()}


def account() -> Any:
    """The account that signs receipts."""
    from eth_account import Account

    return Account.from_key(KEY)


def signature(text: str) -> bytes:
    """That account's signature of a text."""
    from eth_account.messages import encode_defunct

    return bytes(account().sign_message(encode_defunct(text=text)).signature)


def text_receipt() -> dict[Path, str]:
    """The signed receipt of the text that the job `llama` generates, with no version of ours in it."""
    loaded = load_model(MODEL, name=MODEL.name, revision="1")
    prompt = prompt_tokens(loaded.tokenizer, "Euler was")
    generator = Generator(loaded.model, positions=len(prompt) + NEW_TOKENS, chunk=8)
    text = generator.generate(prompt, new_tokens=NEW_TOKENS, sampling=SAMPLING, stop=loaded.stop, seed=TEXT_SEED)
    receipt = make_receipt(
        loaded,
        generator,
        prompt,
        text,
        sampling=SAMPLING,
        seed=TEXT_SEED,
        max_new_tokens=NEW_TOKENS,
        tiebreak_version="any",
    )
    receipt = replace(receipt, versions=dict.fromkeys(receipt.versions, "any"))
    signer = bytes.fromhex(account().address[2:])
    signed = receipt.signed(signer, signature(receipt.by(signer).signed_text()))
    return {FOLDER / "receipts" / "llama_text.json": signed.to_json()}


def receipts() -> dict[Path, str]:
    """The receipt of a training of every job, with nothing in it of this machine."""
    found = {}
    with tempfile.TemporaryDirectory() as made:
        for directory in sorted(JOBS.iterdir()):
            job = Job.read(directory)
            run = Path(made) / directory.name
            Trainer(job, run).run()
            roots = (run / "roots").read_bytes()
            receipt = Receipt(
                spec=job.spec,
                state_roots=tuple(roots[at : at + 32] for at in range(0, len(roots), 32)),
                versions=Versions(python="any", torch="any", tiebreak="any"),
                machine=MachineProfile(
                    system="any", architecture="any", processor="any", instructions="any", threads=1
                ),
                date="2026-01-01T00:00:00Z",
            )
            if directory.name == SIGNED:
                signer = bytes.fromhex(account().address[2:])
                receipt = receipt.signed(signer, signature(receipt.by(signer).signed_text()))
            path = Path(made) / f"{directory.name}.json"
            receipt.write(path)
            found[FOLDER / "receipts" / path.name] = path.read_text()
    return found


def files() -> dict[Path, str]:
    """All files that are made, and at last the manifest, which has the digests of the jobs' files, too."""
    made = {**vectors(), **receipts(), **text_receipt()}
    digests = {path.relative_to(FOLDER).as_posix(): sha256(text.encode()) for path, text in made.items()}
    for path in (*JOBS.rglob("*"), *MODEL.rglob("*"), *(FOLDER / "refused").iterdir()):
        if path.is_file():
            digests[path.relative_to(FOLDER).as_posix()] = sha256(path.read_bytes())
    manifest = {name: digests[name].hexdigest() for name in sorted(digests)}
    made[FOLDER / "manifest.json"] = json.dumps({"sha256": manifest}, indent=1) + "\n"
    return made


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(write_or_check(__doc__, files()))
