"""`tiebreak doctor`: this machine, a pretend card, and stores and nodes of every kind."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiebreak import machine_probe

from tests.client.cli.cli_world import Chain, Run
from tests.client.http_stand_in import Request, serving


def replay(monkeypatch: pytest.MonkeyPatch, *facts: object) -> None:
    """Have the process print these, and no more."""
    lines = "\n".join(map(json.dumps, facts))
    monkeypatch.setattr(machine_probe, "COMMAND", (sys.executable, "-c", f"print({lines!r})"))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the process of this machine would print, without loading PyTorch a second time."""
    from tiebreak.machine_probe import device_facts, torch_facts

    replay(monkeypatch, torch_facts(), *device_facts())


def printed(run: Run, *words: object, code: int = 0, **environment: str) -> dict[str, Any]:
    """What the command prints for programs."""
    result = run("doctor", *words, "--json", env=environment)
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["right"] is (code == 0)
    return found


def of_place(run: Run, *words: object, **environment: str) -> str:
    """The one problem that is found, with a place."""
    found = printed(run, "--patience", "500ms", *words, code=3, **environment)
    (problem,) = [one for one in found["problems"] if one["is_grave"]]
    sentence: str = problem["sentence"]
    assert sentence.endswith(".") and "\n" not in sentence
    return sentence


@pytest.mark.slow
def test_this_machine_is_as_it_should_be(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the process that a user's command starts."""
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    result = run("doctor")
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    for part in ("This machine processor", "PyTorch version", "self-test passed", "exact native (f32, bf16, f16)"):
        assert part in said
    assert result.stdout.index("This machine") < result.stdout.index("PyTorch")
    assert "Stores and nodes" not in result.stdout


def test_a_card_is_described_and_a_wrong_one_is_found_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from tiebreak.machine_probe import device_facts, torch_facts

    (cpu,) = [one for one in device_facts() if one["device"] == "cpu"]
    card = cpu | {"device": "cuda:0", "name": "a card \x1b[2J", "capability": "9.0", "triton_works": True}
    wrong = card | {"device": "cuda:1", "passes": False, "why": "this process flushes subnormal numbers to zero"}
    replay(monkeypatch, torch_facts(), cpu, card, wrong)
    assert (
        "cuda:1 does not compute as it has to: this process flushes" in printed(run, code=3)["problems"][0]["sentence"]
    )
    shown = run("doctor")
    assert shown.exit_code == 3 and "FAILED" in shown.stdout and "\x1b" not in shown.stdout


def test_the_machine_is_described_where_pytorch_crashes_or_hangs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from tiebreak.cli import doctor

    crash = "import os, sys; print('a library says hello'); sys.stdout.flush(); os.abort()"
    for code, said in ((crash, "signal 6 ended it"), ("raise ImportError('libcudart.so.12')", "libcudart.so.12")):
        monkeypatch.setattr(machine_probe, "COMMAND", (sys.executable, "-c", code))
        found = printed(run, code=3)
        assert found["torch"] is None and found["machine"]["processor"]
        assert said in found["problems"][0]["sentence"] and "new environment" in found["problems"][0]["sentence"]
    monkeypatch.setattr(doctor, "SECONDS_OF_PYTORCH", 0.5)
    monkeypatch.setattr(machine_probe, "COMMAND", (sys.executable, "-c", "import time; time.sleep(600)"))
    started = time.monotonic()
    result = run("doctor")
    assert result.exit_code == 3 and time.monotonic() - started < 20
    assert "This machine" in result.stdout and "it had not ended after 0.5 seconds" in result.stdout


def test_what_needs_no_pytorch_is_shown_before_it_is_loaded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command itself never loads it."""
    code = (
        "import sys; from tiebreak import machine_probe\n"
        "machine_probe.COMMAND = (sys.executable, '-c', 'pass')\n"
        "from tiebreak.cli.app import app\n"
        "sys.argv = ['tiebreak', 'doctor']\n"
        "try: app()\n"
        "except SystemExit as end: print('torch' in sys.modules, end.code)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False 3", done.stdout + done.stderr


@pytest.mark.usefixtures("quick")
def test_a_good_chain_and_a_good_store_answer(run: Run, chain: Chain, tmp_path: Path) -> None:
    store = tmp_path / "not" / "yet"
    found = printed(run, "--store", store, **chain.environment())
    assert [one["kind"] for one in found["places"]] == ["store", "node", "contract"]
    assert "made when it is used" in found["places"][0]["facts"] and not store.exists()
    assert "chain 131277322940537, block" in found["places"][1]["facts"]
    assert "this version's" in found["places"][2]["facts"]
    shown = run("doctor", "--store", store, env=chain.environment())
    assert shown.exit_code == 0 and shown.stdout.endswith("All is as it should be.\n")


Answer = Callable[[Request], None]


def garbage(request: Request) -> None:
    request.send(200, b"<html>\x1b[2J" * 1000)


def dripping(request: Request) -> None:
    request.send_response(200)
    for number in range(600):
        request.wfile.write(f"X-{number}: drip\r\n".encode())
        request.wfile.flush()
        time.sleep(0.05)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("kind", "answer"),
    [("gateway", garbage), ("Kubo", garbage), ("node", garbage), ("pinning", garbage), ("node", dripping)],
)
def test_a_hostile_place_is_found_out_in_time(kind: str, answer: Answer, run: Run) -> None:
    with serving(answer) as url:
        words, environment = {
            "gateway": (["--store", f"gateway+{url}"], {}),
            "Kubo": (["--store", url], {}),
            "node": (["--chain", url], {}),
            "pinning": (["--store", url, "--pin-service", "keeper"], {}),
        }[kind]
        started = time.monotonic()
        said = of_place(run, *words, **environment)
        assert time.monotonic() - started < 15
    assert "\x1b" not in said and "defect" not in said, said
    assert "127.0.0.1" in said


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://user:hunter2@127.0.0.1:5001", "http://127.0.0.1:5001"),
        ("gateway+http://user:hunter2@127.0.0.1:1/x?key=hunter2", "gateway+http://127.0.0.1:1"),
        ("ftp:/u:hunter2@x", "..."),
        ("/dns4/u:hunter2@x/tcp/5001", "..."),
    ],
)
def test_secrets_in_the_address_of_a_store_are_not_shown(address: str, shown: str, run: Run) -> None:
    found = printed(run, "--patience", "1s", "--store", address, code=3)
    assert found["places"][0]["name"] == shown
    assert shown.removeprefix("gateway+") in found["places"][0]["problem"]
    assert "hunter2" not in json.dumps(found)


@pytest.mark.usefixtures("quick")
def test_what_is_named_wrongly_is_a_problem_and_not_a_crash(run: Run, chain: Chain, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert "is no folder: choose a folder" in of_place(run, "--store", tmp_path / "file")
    assert "could be meant as an address" in of_place(run, "--store", "10.0.0.1")
    for others in ((), ("--store", tmp_path / "store")):
        assert "no node was asked for the contract" in of_place(run, *others, "--contract", "0x" + "11" * 20)
    nobody = of_place(run, "--chain", chain.url, "--contract", "0x" + "11" * 20)
    assert "0x" + "11" * 20 in nobody
    result = run("doctor", "--patience", "never")
    assert result.exit_code == 2
