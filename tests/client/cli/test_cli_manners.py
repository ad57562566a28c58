"""Behaviour of the command line, whatever the command: speed, errors, secrets, terminals."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from tiebreak import quantities
from tiebreak.cli import output, training
from tiebreak.cli.app import app
from tiebreak.cli.failures import ERROR_CODES
from tiebreak.cli.summary_text import plain_job
from tiebreak.contract.abi import _typed
from tiebreak.contract.structs import JobView
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.quantities import in_ether, in_time
from tiebreak.rpc.node import ChainNode

from tests.client import disputes
from tests.client.cli.cli_world import Chain, Run, refused


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, sub in getattr(command, "commands", {}).items():
        yield from _commands(sub, (*path, name))
    yield path, command


ALL = list(_commands(typer.main.get_command(app)))


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_options_explain_themselves_and_many_stand_in_groups(path: tuple[str, ...], command: Any) -> None:
    """What `--help` says of each is docs/reference/command-line.md."""
    for parameter in command.params:
        assert parameter.name == "help" or getattr(parameter, "help", None), f"{parameter.name} says nothing"
    groups = {getattr(parameter, "rich_help_panel", None) for parameter in command.params}
    assert len(command.params) <= 9 or (len(groups) >= 2 and command.epilog)
    known = {name for parameter in command.params for name in parameter.opts}
    for line in (command.epilog or "").splitlines()[1:]:
        # What stands before it are torchrun's own options.
        words = line.rpartition(" --no-python -- ")[2].split()
        assert words[: len(path) + 1] == ["tiebreak", *path]
        assert {word for word in words if word.startswith("--")} <= known, line


def test_no_option_takes_a_secret() -> None:
    """A command line is kept in the shell's history, and visible to every user of the machine."""
    options = {name for _, command in ALL for parameter in command.params for name in parameter.opts}
    secrets = {name for name in options if re.search("key|password|secret|mnemonic", name)}
    assert secrets <= {"--keystore", "--api-key-file", "--signing-key", "--public-key"}  # names of files


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['tiebreak', '--help']\n"
        "from tiebreak.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code in (0, None)\n"
        "heavy = {'torch', 'numpy', 'web3', 'eth_account', 'eth_abi', 'sklearn', 'requests', 'roundlog.training.job'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_wrong_usage_is_exit_code_2(run: Run, tmp_path: Path) -> None:
    for words in (("frobnicate",), ("train", tmp_path), ("train", tmp_path, "--run", tmp_path, "--nonsense")):
        result = run(*words)
        assert result.exit_code == 2, words
        assert "Traceback" not in result.stderr and result.stdout == ""


@pytest.mark.slow
def test_a_traceback_is_shown_only_with_debug(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tiebreak.cli.app"]
    words = ["train", str(tmp_path / "none"), "--run", str(tmp_path)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("TIEBREAK_")}
    plain = subprocess.run([*command, *words], capture_output=True, text=True, check=False, env=env)
    assert plain.returncode == 1 and "Traceback" not in plain.stderr
    for arguments, variables in ((["--debug", *words], env), (words, env | {"TIEBREAK_DEBUG": "1"})):
        shown = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, env=variables)
        assert shown.returncode == 1 and "Traceback" in shown.stderr


def test_a_defect_asks_to_be_reported(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a defect\nin two lines")

    monkeypatch.setattr(training, "read_job", fail)
    monkeypatch.chdir(tmp_path)
    refused(
        run("train", tmp_path, "--run", tmp_path), "RuntimeError: a defect in two lines", "a defect of Tiebreak", "send"
    )


def test_a_closed_pipe_ends_quietly() -> None:
    command = f"{sys.executable} -m tiebreak.cli.app --help | head -c 1"
    assert subprocess.run(command, shell=True, capture_output=True, check=False).stderr == b""


def test_a_strangers_text_controls_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b[2J\x1b]0;title\x07[red]x[/red]\r\nsecond"
    output.show_line(hostile)
    output.show_facts(hostile, {"name": hostile})
    output.show_table(hostile, ["column"], [[hostile]])
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\x07" not in shown and "\r" not in shown
    assert shown.count("[red]x[/red]") == 5


def test_amounts_and_times_are_exact_in_both_directions() -> None:
    for text, wei in (("1ether", 10**18), ("0.000000000000000001 ether", 1), ("20gwei", 2 * 10**10), ("7wei", 7)):
        assert quantities.wei(text) == wei
    for wei in (0, 1, 10**9, 10**18 + 1, 123456789123456789123):
        assert quantities.wei(in_ether(wei)) == wei
    assert [quantities.seconds(text) for text in ("90s", "1.5m", "24h", "7d")] == [90, 90, 86400, 604800]
    assert in_time(93784) == "1d 2h 3m 4s" and in_time(0) == "0s"
    assert quantities.memory("16GiB") == 1 << 34
    read = quantities.interval(0.05, 600)
    assert [read(text) for text in ("50ms", "0.5s", "2s", "10m")] == [0.05, 0.5, 2, 600]
    for text, why in (
        ("2", "is not a time"),
        ("49ms", "less than 0.05"),
        ("11m", "more than 600"),
        ("1.5ms", "is not"),
    ):
        with pytest.raises(typer.BadParameter, match=why):
            read(text)


def failed_as_json(run: Run, *words: object, env: dict[str, str] | None = None) -> dict[str, object]:
    """The error of a command under --json: one object on one line of standard error, and nothing else anywhere."""
    result = run(*words, "--json", env=env)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    error: dict[str, object] = json.loads(line)["error"]
    assert error["code"] in ERROR_CODES and error["exit_code"] == result.exit_code != 0
    assert str(error["message"]).endswith(".")
    return error


def test_errors_under_json_are_json_with_a_stable_code(run: Run, chain: Chain) -> None:
    away = chain.environment(0) | {"TIEBREAK_CHAIN": "http://127.0.0.1:1"}
    for words, env, code in (
        (("status",), {}, "command"),
        (("withdraw",), chain.environment(), "account"),
        (("status", "--contract", "0x" + "11" * 20), chain.environment(), "contract"),
        (("status",), away, "chain-unavailable"),
        (("devnet", "--kind", "gold"), {}, "devnet"),
        (("trainer", "run"), chain.environment(0), "usage"),
        (("no-such-command",), {}, "usage"),
    ):
        error = failed_as_json(run, *words, env=env)
        assert error["code"] == code, error
        assert error["exit_code"] == (2 if code == "usage" else 1)


# Strangers' words on a screen.


NAMES = {
    "control sequences": "\x1b[2J\x1b[1;1H\x1b]0;owned\x07\x9b31m\r\n\x08",
    "bidirectional controls": "\u202e\u2066\u2067\u200f\u061c0001",
    "nothing to see": "\u200b\u2060\ufeff\U000e0041\u00ad",
    "wide characters": "漢字" * 40 + "\U0001f469\u200d\U0001f469",
    "markup": "[red]x[/red] [link=http://evil]y[/link]",
    "a line without end": "x" * 100_000,
    "many lines": "x\u2028\u2029\n\v\f" * 10_000,
    "surrogates": "\ud800\udfff",
}


@pytest.fixture(scope="module")
def claimed() -> JobView:
    """A job with a claim."""
    cast = disputes.Cast.on(ChainNode(EmbeddedChain()))
    cast.commit(job := cast.post(), disputes.Run.of(33))
    return cast.customer.job(job)


def is_plain(text: str) -> bool:
    return all(one == "\n" or (one.isprintable() and unicodedata.category(one)[0] != "C") for one in text)


@pytest.mark.parametrize("name", NAMES)
def test_no_name_on_the_screen_controls_the_terminal(claimed: JobView, name: str) -> None:
    cid = NAMES[name][:128]  # as much as the contract, and the reader of what a node shows, let through
    job, file = replace(claimed, job_cid=cid, claim=replace(claimed.claim, log_cid=cid, model_cid=cid)), io.StringIO()
    console = Console(file=file, width=80, height=40, force_terminal=False, color_system=None)
    console.print(output.facts_text("Job 1", output.in_words(plain_job(1, job))), soft_wrap=True)
    shown = file.getvalue()
    assert is_plain(shown) and "challenge deadline" in shown and "CLAIMED" in shown
    assert len(shown.splitlines()) < 40
    assert all(len(line) <= 80 or "x" * 128 in line or "漢" in line for line in shown.splitlines())
    if name == "markup":
        assert "[red]x[/red]" in shown


@pytest.mark.parametrize("text", [b"x" * 10**7, b"\x1b[2J\xff" * 1000, b"bafy"], ids=["long", "wild", "short"])
def test_a_text_that_a_node_makes_longer_than_the_contract_allows_is_cut(text: bytes) -> None:
    """A node that lies may show ten megabytes where the contract keeps 128 bytes."""
    read = _typed({"type": "string", "name": "cid"}, text)
    assert len(read) == min(128, len(text)) and is_plain(read.replace("\ufffd", "?"))
