"""The second verifier, which can import nothing of ours, comes to our roots and texts, and finds what is wrong."""

from __future__ import annotations

import ast
import importlib.util
import json
import random
import runpy
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import mpmath
import numpy as np
import pytest
import rfc8785
from eth_account import Account
from roundlog import Job, Trainer
from roundlog.commitments import MerkleTree, state_root
from roundlog.generation import parse_generation_receipt
from roundlog.generation.generation_receipt import tokens_hash
from safetensors.torch import load_file
from tiebreak.transactions.keys import sign_text, signer_of

from tests.engine.generation.test_generation_receipt import STRANGE, places, with_value, without

CONFORMANCE = Path(__file__).resolve().parents[2] / "conformance"
VERIFIER = CONFORMANCE / "second_verifier.py"
PROGRAM_ROOT = CONFORMANCE / "program_root.py"
JOBS = sorted(path.name for path in (CONFORMANCE / "jobs").iterdir())
RIGHT, UNTOLD, WRONG = 0, 1, 3


ALONE = f"""
import runpy, sys

class Foreign:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("roundlog", "tiebreak", "tiebreak_demo", "torch", "safetensors", "mpmath"):
            raise ImportError(name + " is not for the second verifier")

sys.meta_path.insert(0, Foreign)
for name in ("roundlog", "tiebreak"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise AssertionError(name + " can be imported")
sys.argv = ["second_verifier.py", *sys.argv[1:]]
runpy.run_path({str(VERIFIER)!r}, run_name="__main__")
"""


def verify(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The verifier in a process of its own, in which none of our packages can be imported."""
    command = [sys.executable, "-I", "-c", ALONE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def job_and_receipt(name: str) -> tuple[Path, Path]:
    return CONFORMANCE / "jobs" / name, CONFORMANCE / "receipts" / f"{name}.json"


@pytest.fixture(scope="module")
def verifier() -> ModuleType:
    """The file as a module of this process."""
    spec = importlib.util.spec_from_file_location("second_verifier", VERIFIER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["second_verifier"] = module
    spec.loader.exec_module(module)
    return module


Told = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def told(verifier: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Told:
    """What `verify` gives, by the verifier in this process: without the start of another for each of many files."""

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["second_verifier.py", *map(str, arguments)])
        code = verifier.main()
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(sys.argv, code, out, err)

    return run


@pytest.mark.parametrize("name", ["second_verifier", "program_root", "text_receipt", "eip191"])
def test_it_imports_the_standard_library_and_numpy_alone(name: str) -> None:
    file, names = CONFORMANCE / f"{name}.py", set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add((node.module or "").partition(".")[0])
    assert len(names) > 1 and names - {"numpy"} <= sys.stdlib_module_names
    assert "numpy" not in names or file == VERIFIER
    # One file on purpose: it is read from top to bottom, and copied to where it is used.
    assert len(file.read_text().splitlines()) <= 1200


@pytest.mark.slow_but("convolution", "dropout_adamw", "gpt_hopper")
@pytest.mark.parametrize("name", JOBS)
def test_it_comes_to_the_roots_of_a_receipt(name: str, told: Told) -> None:
    job, receipt = job_and_receipt(name)
    done = told(job, "--receipt", receipt)
    assert (done.returncode, done.stderr) == (RIGHT, "")
    assert json.loads(receipt.read_text())["checkpoint_root"] in done.stdout and "right:" in done.stdout


def test_a_checkpoint_root_is_compared_by_itself() -> None:
    job, receipt = job_and_receipt("logistic_sgd")
    root = json.loads(receipt.read_text())["checkpoint_root"]
    assert verify(job, "--claim", root).returncode == RIGHT
    assert verify(job, "--claim", root[:-1] + ("0" if root[-1] != "0" else "1")).returncode == WRONG
    assert root in verify(job).stdout


def with_roots(receipt: Path, roots: list[str], to: Path) -> Path:
    """A receipt of other state roots, which contradicts itself in nothing."""
    plain = json.loads(receipt.read_text())
    whole = MerkleTree([bytes.fromhex(root[2:]) for root in roots]).root
    plain |= {"state_roots": roots, "checkpoint_root": "0x" + whole.hex(), "final_state_root": roots[-1]}
    to.write_text(json.dumps(plain))
    return to


@pytest.mark.parametrize("interval", [0, 3])
def test_a_weight_that_is_one_ulp_away_is_found(interval: int, told: Told, tmp_path: Path) -> None:
    directory, receipt = job_and_receipt("logistic_sgd")
    job = Job.read(directory)
    Trainer(job, tmp_path / "run").run()
    roots = json.loads(receipt.read_text())["state_roots"]
    step = (interval + 1) * job.spec.interval
    loaded = load_file(tmp_path / "run" / "checkpoints" / f"{step:08}.safetensors")
    state = [loaded[name].clone() for name in job.program.states]
    assert roots[interval] == "0x" + state_root(state).hex()
    weight = state[0].numpy().reshape(-1)
    weight[4] = np.nextafter(weight[4], np.float32(np.inf))
    roots[interval] = "0x" + state_root(state).hex()
    done = told(directory, "--receipt", with_roots(receipt, roots, tmp_path / "receipt.json"))
    assert done.returncode == WRONG
    assert f"wrong: interval {interval} " in done.stdout and roots[interval] in done.stdout


def test_steps_before_the_first_wrong_one_are_right(told: Told, tmp_path: Path) -> None:
    directory, receipt = job_and_receipt("logistic_sgd")
    roots = json.loads(receipt.read_text())["state_roots"]
    bent = with_roots(receipt, [*roots[:2], roots[0], roots[3]], tmp_path / "receipt.json")
    assert told(directory, "--receipt", bent, "--steps", "4").returncode == RIGHT
    assert told(directory, "--receipt", bent, "--steps", "6").returncode == WRONG
    assert told(directory, "--receipt", bent, "--steps", "3").returncode == UNTOLD


def flipped(root: str) -> str:
    return root[:-1] + ("0" if root[-1] != "0" else "1")


BREAKS: dict[str, tuple[int, Callable[[dict[str, Any]], object]]] = {
    "run_id": (UNTOLD, lambda r: r.update(run_id=flipped(r["run_id"]))),
    "checkpoint_root": (UNTOLD, lambda r: r.update(checkpoint_root=flipped(r["checkpoint_root"]))),
    "final_state_root": (UNTOLD, lambda r: r.update(final_state_root=r["state_roots"][0])),
    "a state root": (UNTOLD, lambda r: r["state_roots"].__setitem__(1, flipped(r["state_roots"][1]))),
    "fewer roots": (UNTOLD, lambda r: r["state_roots"].pop()),
    "a root in capitals": (UNTOLD, lambda r: r["state_roots"].__setitem__(0, r["state_roots"][0].upper())),
    "another seed": (UNTOLD, lambda r: r["spec"].update(seed=r["spec"]["seed"] + 1)),
    "another format": (UNTOLD, lambda r: r.update(format="tiebreak audit")),
    "another version": (UNTOLD, lambda r: r.update(version=2)),
    "a missing field": (UNTOLD, lambda r: r.pop("date")),
    "another field": (UNTOLD, lambda r: r.update(note="")),
    "a date that is none": (UNTOLD, lambda r: r.update(date="2026-02-30T00:00:00Z")),
    "a date in few digits": (UNTOLD, lambda r: r.update(date="2026-1-1T0:0:0Z")),
    "a number that is no integer": (UNTOLD, lambda r: r["spec"].update(seed=float(r["spec"]["seed"]))),
    "no threads": (UNTOLD, lambda r: r["machine"].update(threads=0)),
    "a long text": (UNTOLD, lambda r: r["versions"].update(torch="t" * 201)),
    "a signer alone": (UNTOLD, lambda r: r.pop("signature")),
    "a signature of zeros": (UNTOLD, lambda r: r.update(signature="0x" + 130 * "0")),
    "a signature that is a number": (UNTOLD, lambda r: r.update(signature=5)),
    "another signer": (WRONG, lambda r: r.update(signer="0x" + 40 * "1")),
    "another date than was signed": (WRONG, lambda r: r.update(date="2026-01-02T00:00:00Z")),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_broken_receipt_is_refused(what: str, told: Told, tmp_path: Path) -> None:
    directory, receipt = job_and_receipt("dropout_adamw")
    plain = json.loads(receipt.read_text())
    code, bend = BREAKS[what]
    bend(plain)
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps(plain))
    done = told(directory, "--receipt", path)
    assert done.returncode == code
    assert len((done.stderr if code == UNTOLD else done.stdout).splitlines()) == 1


def test_a_key_twice_is_refused(told: Told, tmp_path: Path) -> None:
    directory, receipt = job_and_receipt("dropout_adamw")
    path = tmp_path / "receipt.json"
    path.write_text(receipt.read_text().replace('"version": 1', '"version": 1, "version": 1'))
    done = told(directory, "--receipt", path)
    assert done.returncode == UNTOLD and "twice" in done.stderr


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A job's directory, which may be changed."""
    return Path(shutil.copytree(CONFORMANCE / "jobs" / "logistic_sgd", tmp_path / "job"))


@pytest.mark.parametrize("file", ["initial", "data", "schedule"])
def test_a_job_with_another_number_is_refused(file: str, told: Told, copied: Path) -> None:
    bent = bytearray((copied / f"{file}.safetensors").read_bytes())
    bent[-1] ^= 1
    (copied / f"{file}.safetensors").write_bytes(bent)
    done = told(copied)
    assert done.returncode == UNTOLD and "root" in done.stderr


def test_a_program_with_another_constant_is_refused(copied: Path) -> None:
    program = copied / "program.json"
    text = program.read_text()
    program.write_text(text.replace('{"bits":[1063675494]}', '{"bits":[1063675495]}'))
    assert program.read_text() != text
    done = verify(copied)
    assert done.returncode == UNTOLD and "program_root" in done.stderr
    command = [sys.executable, "-I", str(PROGRAM_ROOT), str(copied)]
    alone = subprocess.run(command, capture_output=True, text=True, check=False)
    assert alone.returncode == WRONG and alone.stdout.startswith("wrong: ")


def test_descriptors_are_those_of_the_vectors() -> None:
    """A program with every operator: its encoded descriptors, byte for byte."""
    described = runpy.run_path(str(PROGRAM_ROOT))
    vectors = json.loads((CONFORMANCE.parent / "tests" / "vectors" / "descriptors.json").read_text())
    program = json.loads(vectors["program"])
    for number, operator in enumerate(vectors["operators"]):
        found = "0x" + described["describe"](program, number).hex()
        assert found == operator["encoded"], (number, operator["operator"])
    assert "0x" + described["root_of"](program).hex() == vectors["programRoot"]


def test_a_malformed_job_is_refused_in_one_sentence(told: Told, copied: Path) -> None:
    spec, program = copied / "spec.json", copied / "program.json"
    texts = spec.read_text(), program.read_text()
    for bent in (
        (texts[0].replace('"seed"', '"sead"'), texts[1]),
        (texts[0].replace('"steps":8', '"steps":"8"'), texts[1]),
        (texts[0], texts[1].replace("[[", "[ [", 1)),
        (texts[0], texts[1].replace('["matmul",[6,8]', '["matmul",[6,6]', 1)),
        (texts[0], texts[1].replace('{"dims":[1]}', '{"dims":7}', 1)),
        (texts[0], texts[1].replace('["log",', '["lgamma",')),
        (texts[0], texts[1][:-9]),
    ):
        assert bent != texts
        spec.write_text(bent[0])
        program.write_text(bent[1])
        done = told(copied)
        assert done.returncode == UNTOLD and len(done.stderr.splitlines()) == 1 and done.stdout == "", done


def test_vectors_agree() -> None:
    done = verify("--vectors", CONFORMANCE / "vectors")
    assert (done.returncode, done.stderr) == (RIGHT, "") and done.stdout.startswith("right: ")


def test_a_vector_of_another_bit_is_found(told: Told, tmp_path: Path) -> None:
    plain = json.loads((CONFORMANCE / "vectors" / "exp.json").read_text())
    words = plain["cases"][0]["output"]["words"]
    words[12] = f"{int(words[12], 16) ^ 1:08x}"
    (tmp_path / "exp.json").write_text(json.dumps(plain))
    done = told("--vectors", tmp_path)
    assert done.returncode == WRONG and "exp, case 0, element 12" in done.stdout


def test_exact_paths_give_the_vectors_by_themselves(verifier: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all elements are decided by FP64: here none is."""
    count = 0
    certify = verifier.certify

    def doubt(values: Any, errors: Any, to: Any, exact: Callable[[int], float]) -> Any:
        nonlocal count
        count += 1
        return certify(values, np.where(errors > 0, np.inf, errors), to, exact)

    monkeypatch.setattr(verifier, "certify", doubt)
    cases, wrong = verifier.check_vectors(CONFORMANCE / "vectors")
    assert wrong == [] and cases > 200 and count > 60


@pytest.mark.parametrize("name", ["exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos"])
def test_intervals_of_functions_hold_the_value(verifier: ModuleType, name: str) -> None:
    draw = np.random.default_rng(7)
    arguments = [float(np.float32(x)) for x in draw.normal(size=40) * 2.0 ** draw.integers(-60, 4, size=40)]
    arguments += [1e30, -1e30, 3.0e38] if name in ("sin", "cos") else []
    between = verifier.FUNCTIONS[name][1]
    for x in arguments:
        x = abs(x) if name == "log" else max(x, -0.999) if name == "log1p" else x
        for bits in (64, 256):
            low, high = between(Fraction(x), bits)
            with mpmath.workprec(1200):
                value = getattr(mpmath, name)(mpmath.mpf(x))
                assert mpmath.mpf(low.numerator) / low.denominator <= value, (name, x, bits)
                assert value <= mpmath.mpf(high.numerator) / high.denominator, (name, x, bits)
            assert high - low <= max(abs(low), 1) * Fraction(1, 2 ** (bits - 4))


JOB, MODEL = CONFORMANCE / "jobs" / "llama", CONFORMANCE / "models" / "llama"
RECEIPT = CONFORMANCE / "receipts" / "llama_text.json"
TEXT_RECEIPT = CONFORMANCE / "text_receipt.py"


def plain_receipt() -> dict[str, Any]:
    """The receipt, as JSON has it, without its signature."""
    plain: dict[str, Any] = json.loads(RECEIPT.read_text())
    del plain["signer"], plain["signature"]
    return plain


def with_tokens(plain: dict[str, Any], tokens: list[int], **sampling: object) -> dict[str, Any]:
    """A receipt of other tokens, which contradicts itself in nothing."""
    plain["sampling"] |= sampling
    stopped = tokens[-1] in plain["sampling"]["stop_tokens"]
    follows = {"tokens": tokens, "token_count": len(tokens), "tokens_hash": "0x" + tokens_hash(tokens).hex()}
    return plain | follows | {"finish_reason": "stop" if stopped else "length"}


def test_it_comes_to_the_tokens_and_log_probabilities_of_a_receipt() -> None:
    done = verify(JOB, "--receipt", RECEIPT, "--model", MODEL)
    assert (done.returncode, done.stderr) == (RIGHT, "")
    assert "right: all 6 tokens" in done.stdout
    without_files = verify(JOB, "--receipt", RECEIPT)
    assert (
        without_files.returncode == RIGHT and "config_hash and tokenizer_hash are not checked" in without_files.stderr
    )


BENT: dict[str, tuple[int, str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "a token": (WRONG, "token 2 is 36, not 37", lambda r: with_tokens(r, [*r["tokens"][:2], 37, *r["tokens"][3:]])),
    "an earlier end": (
        WRONG,
        "goes on behind token 3",
        lambda r: with_tokens(r, r["tokens"][:4], stop_tokens=[0, 1, 14, 31, 179, 199]),
    ),
    "an end that is left away": (
        WRONG,
        "ends behind token 5",
        lambda r: with_tokens(r, [*r["tokens"], *[0] * 6], stop_tokens=[]),
    ),
    "log-probabilities": (WRONG, "log-prob", lambda r: r | {"logprobs_root": flipped(r["logprobs_root"])}),
    "a prompt": (UNTOLD, "another prompt", lambda r: r | {"prompt_tokens": [7, *r["prompt_tokens"][1:]]}),
    "a longer prompt": (UNTOLD, "other sequences", lambda r: r | {"prompt_tokens": [7, *r["prompt_tokens"]]}),
    "a seed": (UNTOLD, "another seed", lambda r: with_tokens(r, r["tokens"], seed="20")),
    "a longer text": (UNTOLD, "other sequences", lambda r: with_tokens(r, r["tokens"], max_new_tokens=13)),
    "an arithmetic": (UNTOLD, "another arithmetic", lambda r: r | {"arithmetic": "hopper"}),
    "a dtype": (UNTOLD, "another dtype", lambda r: r | {"model": r["model"] | {"dtype": "bf16"}}),
    **{
        name: (UNTOLD, said, lambda r, name=name: r | {"model": r["model"] | {name: flipped(r["model"][name])}})
        for name, said in (
            ("model_weight_hash", "other weights"),
            ("config_hash", "config_hash"),
            ("tokenizer_hash", "tokenizer_hash"),
        )
    },
}


@pytest.mark.slow_but("a token", "an earlier end", "a seed", "model_weight_hash")
@pytest.mark.parametrize("what", BENT)
def test_what_is_bent_in_a_text_is_found(what: str, told: Told, tmp_path: Path) -> None:
    code, said, bend = BENT[what]
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps(bend(plain_receipt())))
    parse_generation_receipt(path.read_bytes())  # contradicts itself in nothing
    done = told(JOB, "--receipt", path, "--model", MODEL)
    assert done.returncode == code, done
    heard, silent = (done.stdout, done.stderr) if code == WRONG else (done.stderr, done.stdout)
    assert said in heard and len(heard.splitlines()) == 1 and silent == ""


def test_a_signature_is_over_every_field(told: Told, tmp_path: Path) -> None:
    """Numbers that are no integers are in it, as ECMAScript writes them."""
    path = tmp_path / "receipt.json"
    text = RECEIPT.read_text()
    for old, new in (('"revision":"1"', '"revision":"2"'), ('"top_p":0.9', '"top_p":0.91')):
        assert old in text
        path.write_text(text.replace(old, new))
        done = told(JOB, "--receipt", path)
        assert done.returncode == WRONG and "the signature is" in done.stdout


def mutated(draw: random.Random, signature: bytes) -> bytes:
    """Another form of a signature, or what resembles one."""
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    r, s, v = int.from_bytes(signature[:32]), int.from_bytes(signature[32:64]), signature[64]
    edges = [0, 1, order // 2, order // 2 + 1, order, 2**256 - 1]
    x, y = (draw.choice([*edges, order - n, (n + order) % 2**256, n ^ 1 << draw.randrange(256)]) for n in (r, s))
    r, s = draw.choice([(r, s), (r, s), (x, s), (r, y), (r, order - s), (x, y), (s, r)])
    v = draw.choice([v, v, 55 - v, v - 27, 28 - v, v + 8, v + 10, draw.randrange(256)])
    whole = r.to_bytes(32) + s.to_bytes(32) + bytes([v])
    compact = r.to_bytes(32) + (s % 2**255 | (1 - v % 2) << 255).to_bytes(32)  # EIP-2098
    others = [compact, whole[-1:] + whole[:-1], whole + bytes(1), bytes(1) + whole, whole[: draw.randrange(65)]]
    return draw.choice([*[whole] * 6, *others])


@pytest.mark.slow_cases("60")
@pytest.mark.parametrize("accounts", [2, 60])
def test_a_signature_has_one_form_and_both_verifiers_take_it_alone(accounts: int) -> None:
    """Fifty mutated ones of each account, by a generator that knows neither verifier."""
    theirs, draw = runpy.run_path(str(CONFORMANCE / "eip191.py"))["signer_of"], random.Random(43)
    taken = 0
    for _ in range(accounts):
        account, text = Account.from_key(draw.randbytes(32)), f"text {draw.random()}"
        right, signer = sign_text(account, text), bytes.fromhex(account.address[2:])
        forms = [right, *(mutated(draw, right) for _ in range(50))]
        for form in forms:
            try:
                found = bytes.fromhex(theirs(text.encode(), form)[2:])
            except ValueError:
                found = None
            assert signer_of(text, form) == found, form.hex()
            assert (found == signer) is (form == right), form.hex()
            taken += found is not None
    assert taken > accounts, "some are of other accounts"


def test_a_receipt_is_of_the_job_that_generates_its_text(told: Told, tmp_path: Path) -> None:
    other = CONFORMANCE / "jobs" / "gpt"
    done = told(other, "--receipt", RECEIPT)
    assert done.returncode == UNTOLD and "generates no text" in done.stderr
    for words in (("--steps", "10"), ("--claim", "0x" + 64 * "1")):
        done = told(JOB, "--receipt", RECEIPT, *words)
        assert done.returncode == UNTOLD and "are of runs" in done.stderr
    alone = tmp_path / VERIFIER.name
    shutil.copy(VERIFIER, alone)
    command = [sys.executable, "-I", alone, JOB, "--receipt", RECEIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == UNTOLD and "text_receipt.py does not lie beside" in done.stderr


def test_it_takes_the_receipts_that_the_engine_takes_and_no_others() -> None:
    """Every field broken in turn, and every field left away."""
    read = runpy.run_path(str(TEXT_RECEIPT))["read_text_receipt"]

    def taken(reader: Callable[[bytes], object], data: bytes) -> bool:
        try:
            reader(data)
        except ValueError as error:
            assert len(str(error)) < 400 and "\n" not in str(error)
            return False
        return True

    plain = json.loads(RECEIPT.read_text())
    files = [RECEIPT.read_bytes(), b"{", b"[]", b"\xff", RECEIPT.read_bytes() + b"}"]
    for path in places(plain):
        if isinstance(path[-1], str):
            files.append(json.dumps(without(plain, path)).encode())
            files.append(json.dumps(with_value(plain, (*path[:-1], "other"), 1)).encode())
        files += [json.dumps(with_value(plain, path, strange)).encode() for strange in STRANGE]
    digits = plain["signature"][2:]
    for form in ("0X" + digits, digits, "0x" + digits.upper(), " 0x" + digits, f"0x{digits}\n", "0x" + digits[:-2]):
        files.append(json.dumps(with_value(plain, ("signature",), form)).encode())
    for name, value in (("temperature", 0), ("top_k", 2**20 + 1), ("top_p", 1.0001), ("repetition_penalty", 0)):
        files.append(json.dumps(with_value(plain, ("sampling", name), value)).encode())
    decisions = [(taken(read, data), taken(parse_generation_receipt, data)) for data in files]
    assert [a for a, b in decisions] == [b for a, b in decisions]
    assert 10 < sum(a for a, _ in decisions) < 100 and len(decisions) > 900


def test_numbers_are_written_as_ecmascript_writes_them() -> None:
    canonical = runpy.run_path(str(VERIFIER))["canonical"]
    draw = random.Random(4)
    numbers = [0.0, -0.0, 1.0, 0.1, 1e-6, 9.9e-7, 1e21, 1e20, 123456789012345680000.0, 5e-324, 1.7976931348623157e308]
    numbers += [x for x in (struct.unpack("<d", draw.randbytes(8))[0] for _ in range(2000)) if x - x == 0]
    numbers += [draw.uniform(-1, 1) * 10.0 ** draw.randrange(-9, 24) for _ in range(2000)]
    for number in numbers:
        assert canonical({"b": [number], "a": "x"}) == rfc8785.dumps({"b": [number], "a": "x"}), number


def test_a_receipt_is_read_without_its_model(tmp_path: Path) -> None:
    """In a process of its own: torch lets Python recurse deeper than its stack is."""
    deep = tmp_path / "deep.json"
    deep.write_bytes(b"[" * 100_000)
    for path, code in ((RECEIPT, RIGHT), (CONFORMANCE / "receipts" / "gpt.json", UNTOLD), (deep, UNTOLD)):
        done = subprocess.run([sys.executable, "-I", TEXT_RECEIPT, path], capture_output=True, text=True, check=False)
        assert done.returncode == code and len((done.stdout + done.stderr).splitlines()) == 1
    assert verify(JOB, "--receipt", deep).returncode == UNTOLD
