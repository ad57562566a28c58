"""Receipts of texts in the second verifier: it comes to their tokens by a job, and finds what is bent."""

from __future__ import annotations

import json
import random
import runpy
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rfc8785
import roundlog
import torch
from eth_account import Account
from roundlog import Job, Task
from roundlog.capture.huggingface import Sampling
from roundlog.generation import Generator, load_model, make_receipt, parse_generation_receipt
from roundlog.generation.generation_receipt import tokens_hash
from tiebreak.transactions.keys import sign_text, signer_of

from tests.conformance.test_second_verifier import CONFORMANCE, RIGHT, UNTOLD, VERIFIER, WRONG, flipped, verify
from tests.engine.generation.test_generation_receipt import STRANGE, places, with_value, without

JOB, MODEL = CONFORMANCE / "jobs" / "llama", CONFORMANCE / "models" / "llama"
RECEIPT = CONFORMANCE / "receipts" / "llama_text.json"
ALONE = CONFORMANCE / "text_receipt.py"


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


BREAKS: dict[str, tuple[int, str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
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


@pytest.mark.parametrize("what", BREAKS)
def test_what_is_bent_is_found(what: str, tmp_path: Path) -> None:
    code, said, bend = BREAKS[what]
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps(bend(plain_receipt())))
    parse_generation_receipt(path.read_bytes())  # contradicts itself in nothing
    done = verify(JOB, "--receipt", path, "--model", MODEL)
    assert done.returncode == code, done
    told, silent = (done.stdout, done.stderr) if code == WRONG else (done.stderr, done.stdout)
    assert said in told and len(told.splitlines()) == 1 and silent == ""


def test_a_signature_is_over_every_field(tmp_path: Path) -> None:
    """Numbers that are no integers are in it, as ECMAScript writes them."""
    path = tmp_path / "receipt.json"
    text = RECEIPT.read_text()
    for old, new in (('"revision":"1"', '"revision":"2"'), ('"top_p":0.9', '"top_p":0.91')):
        assert old in text
        path.write_text(text.replace(old, new))
        done = verify(JOB, "--receipt", path)
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
@pytest.mark.parametrize("accounts", [4, 60])
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


def test_a_receipt_is_of_the_job_that_generates_its_text(tmp_path: Path) -> None:
    other = CONFORMANCE / "jobs" / "gpt"
    done = verify(other, "--receipt", RECEIPT)
    assert done.returncode == UNTOLD and "generates no text" in done.stderr
    for words in (("--steps", "10"), ("--claim", "0x" + 64 * "1")):
        done = verify(JOB, "--receipt", RECEIPT, *words)
        assert done.returncode == UNTOLD and "are of runs" in done.stderr
    alone = tmp_path / VERIFIER.name
    shutil.copy(VERIFIER, alone)
    command = [sys.executable, "-I", alone, JOB, "--receipt", RECEIPT]
    told = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert told.returncode == UNTOLD and "text_receipt.py does not lie beside" in told.stderr


def test_it_takes_the_receipts_that_the_engine_takes_and_no_others() -> None:
    """Every field broken in turn, and every field left away."""
    read = runpy.run_path(str(ALONE))["read_text_receipt"]

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
        done = subprocess.run([sys.executable, "-I", ALONE, path], capture_output=True, text=True, check=False)
        assert done.returncode == code and len((done.stdout + done.stderr).splitlines()) == 1
    assert verify(JOB, "--receipt", deep).returncode == UNTOLD


@pytest.mark.slow
def test_texts_of_a_model_in_bf16_as_tensor_cores_add(tmp_path: Path) -> None:
    """A model of its own, whose head is no embedding, captured now."""
    import transformers

    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    torch.manual_seed(3)
    config = transformers.LlamaConfig.from_pretrained(MODEL)
    config.tie_word_embeddings = False
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    loaded, how, prompt = load_model(folder), Sampling(temperature=0.7, top_p=0.95), [5, 6, 7]
    generator = Generator(loaded.model, positions=7, chunk=4, arithmetic="hopper")
    text = generator.generate(prompt, new_tokens=4, sampling=how, stop=loaded.stop, seed=2)
    receipt = make_receipt(
        loaded, generator, prompt, text, sampling=how, seed=2, max_new_tokens=4, tiebreak_version="0"
    )
    (tmp_path / "text.json").write_text(receipt.to_json())
    with roundlog.portable():
        task = Task.from_causal_lm(
            loaded.model, [prompt], new_tokens=4, temperature=0.7, top_p=0.95, stop=loaded.stop, seed=2
        )
        Job.from_task(lambda: task, arithmetic="hopper").write(tmp_path / "job")
    done = verify(tmp_path / "job", "--receipt", tmp_path / "text.json", "--model", folder)
    assert (done.returncode, done.stderr) == (RIGHT, "")
