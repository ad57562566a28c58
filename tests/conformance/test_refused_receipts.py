"""Files of conformance/refused are refused, each for its reason, by our reader and by the second verifier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from roundlog.generation import load_model, parse_generation_receipt
from tiebreak.cli.failures import CommandError
from tiebreak.cli.receipt_files import read_receipt_file

from tests.conformance.test_second_verifier import CONFORMANCE, UNTOLD, Told, told, verifier

__all__ = ["told", "verifier"]

CASES = {one["name"]: one for one in json.loads((CONFORMANCE / "refused" / "receipts.json").read_text())["cases"]}

REASONS = {
    "an unknown arithmetic": ("there is no arithmetic 'blackwell'", "there is no such arithmetic"),
    "a smaller count of tokens": ("a token_count that does not follow", "token_count does not follow"),
    "tokens in big-endian": ("a tokens_hash that does not follow", "tokens_hash does not follow"),
    "a text that goes on behind its end": ("behind a token that ends its text", "behind a token that ends its text"),
    "likeliest tokens without their number": ("lacks count", "top_logprobs has other fields"),
    "a default that is spelled out": ("min_p at its default", "min_p is none"),
    "a seed that is a number": ("a seed that is no text of a number", "seed is no text of a number"),
    "a hash in capitals": ("is not 0x and 64 lower-case hex digits", "a hash has another form"),
    "a signer without a signature": ("a signer without a signature", "it has other fields"),
    "a key twice": ("has a key twice: 'token_count'", "has a key twice"),
    "a number that is none": ("has NaN", "has the number NaN"),
    "another form of a text's signature": ("with a low s and a v of 27 or 28", "The signature is none"),
    "a signature with another v": ("with a low s and a v of 27 or 28", "The signature is none"),
    "another form of a run's signature": ("with a low s and a v of 27 or 28", "The signature is none"),
    "fewer intervals than the spec has": ("not a list of 4 roots", "has no 4 roots"),
    "a spec with fewer steps": ("another run_id than follows", "is the receipt of another job"),
    "a final state that is another": ("another final_state_root than follows", "final_state_root of"),
    "roots in the other byte order": ("another checkpoint_root than follows", "checkpoint_root of"),
    "a sample without its total": ("lacks parts", "is no receipt of a training"),
    "more drawn than there is": ("drawn that is not a whole number from 1 to 2", "is no receipt of a training"),
    "a smaller count of requests": ("does not follow from its answers", "has the number -1.5"),
    "answers without their number": ("does not follow from its answers", "has the number -1.5"),
    "a prompt that is not its text's encoding": ("others from token 8 on", "The job has another prompt"),
}
"""Words of our reader, and of the second verifier, which reads neither audits nor evaluations."""


def ours(path: Path, case: dict[str, Any]) -> str:
    """The fault that we find in a receipt's file."""
    pytest.importorskip("transformers")
    try:
        read = read_receipt_file(path)
    except (CommandError, ValueError) as error:
        return str(error)
    if (fault := read.fault(None, None)) is not None or "request" not in case:
        return fault or "none"
    pytest.importorskip("starlette")
    from tiebreak.server.exchange_check import wrong_request

    model = load_model(CONFORMANCE / "models" / "llama", name="llama")
    (fault,) = wrong_request(parse_generation_receipt(path.read_bytes()), model, case["request"].encode())
    return fault


def test_every_case_has_its_reasons() -> None:
    assert CASES.keys() == REASONS.keys() and all(case["reason"] for case in CASES.values())


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_for_its_reason(name: str, told: Told, tmp_path: Path) -> None:
    case, (said, said_there) = CASES[name], REASONS[name]
    path = tmp_path / "receipt.json"
    path.write_text(case["file"])
    done = told(CONFORMANCE / "jobs" / case.get("job", "llama"), "--receipt", path)
    assert done.returncode == UNTOLD and said_there in done.stderr and len(done.stderr.splitlines()) == 1, done
    assert said in ours(path, case)
