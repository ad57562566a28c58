"""`tiebreak serve` as a process: what it says, and that a kill at any instant loses no receipt that a client was told
of."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path

import pytest
from roundlog.generation import Generator, load_model, parse_generation_receipt
from roundlog.generation.receipt_check import check_text
from tiebreak.cli.app import app
from tiebreak.transactions.keys import KEY_VARIABLE, devnet_account, signer_of
from typer.testing import CliRunner

from tests.client.server.asking import API_KEY, Exchange, exchange
from tests.client.server.small_model import save_small_model


@contextmanager
def serving(model: Path, receipts: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that serves those who bring API_KEY, and signs, killed at the end, and its address."""
    file = receipts.with_suffix(".key")
    file.touch(0o600)
    file.write_text(f"{API_KEY}\n")
    words = ["serve", "--model", str(model), "--receipts", str(receipts), "--positions", "64", "--rows", "2"]
    words += ["--port", "0", "--sign", "--api-key-file", str(file)]
    env = dict(os.environ) | {KEY_VARIABLE: devnet_account(1).key.hex()}
    command = [sys.executable, "-P", "-m", "tiebreak", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 240)[0], "the server does not begin"
        line = process.stdout.readline()
        found = re.search(r"http://\S+/v1", line)
        assert found is not None and devnet_account(1).address in line, line
        yield process, found[0].removesuffix("v1")
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_every_receipt_that_a_client_was_told_of_outlives_a_kill(tmp_path: Path) -> None:
    model, receipts = save_small_model(tmp_path / "small"), tmp_path / "receipts"
    answers: list[tuple[str, Exchange]] = []
    over = threading.Event()

    def ask(url: str, stream: bool) -> None:
        number = 0
        while not over.is_set():
            number += 1
            body = {"model": "small", "prompt": "ab", "max_tokens": 1 + number % 7, "stream": stream}
            # A client whose answer was cut off was told of no receipt.
            with suppress(OSError, HTTPException, AssertionError):
                found = exchange(url, "/v1/completions", body)
                answers.append(((found.events[0] if stream else found.plain)["id"], found))

    with serving(model, receipts) as (process, url):
        threads = [threading.Thread(target=ask, args=(url, stream)) for stream in (False, True, False, True)]
        for thread in threads:
            thread.start()
        ends = time.monotonic() + 120
        while len(answers) < 12:
            assert time.monotonic() < ends
            time.sleep(0.05)
        process.kill()  # SIGKILL, while all of them are being answered
        process.wait()
        over.set()
        for thread in threads:
            thread.join()
    loaded = load_model(model)
    checker = Generator(loaded.model, positions=64)
    with serving(model, receipts) as (process, url):
        for name, asked in answers:
            receipt = parse_generation_receipt(exchange(url, f"/v1/receipts/{name}").response)
            assert receipt.request_sha256 == sha256(asked.request).digest()
            assert receipt.response_sha256 == sha256(asked.response).digest()
            assert check_text(receipt, checker, stop=receipt.stop).is_right
            assert receipt.signature is not None
            signer = signer_of(receipt.signed_text(), receipt.signature)
            assert signer == receipt.signer == bytes.fromhex(devnet_account(1).address[2:])
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


NO_ORIGINS = ["*", "null", "chat.example", "https://*.example", "https://a.example/", "https://a.example:443"]
NO_KEYS = {"empty": " \n", "spaced": "a b", "foreign": "schlüssel", "long": "x" * 513, "huge": "x" * (1 << 20)}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "nowhere"], "there is no folder nowhere"),
        (["--model", ".", "--host", "example.com"], "is no IP address"),
        (["--model", ".", "--sign"], "no account is given"),
        *((["--model", ".", "--allow-origin", one], "is not an origin") for one in NO_ORIGINS),
        (["--model", ".", "--api-key-file", "nowhere"], "cannot be read"),
        (["--model", ".", "--api-key-file", "open"], "can be read by others: run chmod 600"),
        *((["--model", ".", "--api-key-file", name], f"{name} is no API key") for name in NO_KEYS),
    ],
)
def test_what_cannot_be_served_is_told_in_one_sentence(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in ({"open": "x"} | NO_KEYS).items():
        Path(name).write_text(text)
        Path(name).chmod(0o644 if name == "open" else 0o600)
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    done = CliRunner().invoke(app, ["serve", "--port", "0", *options])
    assert done.exit_code == 1 and said in done.stderr and done.stderr.count("Error:") == 1
    assert "Traceback" not in done.output


def test_the_folder_of_receipts_says_what_is_in_it(tmp_path: Path) -> None:
    """A kill between the two files of an answer leaves a receipt under its digest, and no name without one."""
    from tiebreak.server import IssuedReceipts

    kept = IssuedReceipts(tmp_path)
    name = "cmpl-" + "ab" * 16
    assert kept.receipt(name) is None
    (tmp_path / "receipts" / f"{'0' * 64}.json").write_text("{}")
    assert kept.receipt("0" * 64) == kept.receipt("0x" + "0" * 64) == b"{}"
    (tmp_path / "answers" / f"{name}.json").write_text(json.dumps({"receipts": ["0" * 64]}))
    assert kept.receipt(name) == b"{}"
