"""The page for operators: its tables, and the files beside it, as far as they can be tried here."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import make_operating_docs
import pytest
import yaml
from tiebreak.operation.monitor import Cause

from tests.client.cli.cli_world import Run

ROOT = Path(__file__).resolve().parents[3]
PLACE = ROOT / "docs" / "operating"
UNIT = PLACE / "tiebreak@.service"


def test_the_tables_are_what_the_code_says() -> None:
    assert make_operating_docs.FILE.read_text() == make_operating_docs.page(), "run scripts/make_operating_docs.py"


def test_every_alert_has_a_line_that_says_what_to_do() -> None:
    text = make_operating_docs.FILE.read_text().split("## What to do when")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[a-z`, -]+`) \| `Tiebreak", text, re.MULTILINE)
    assert set(re.findall("`([a-z-]+)`", "".join(rows))) == {cause.value for cause in Cause}


def understood(run: Run, words: list[str]) -> None:
    """Whether a command line has only commands and options that there are."""
    result = run(*words, "--help")
    assert result.exit_code == 0 and "Usage" in result.stdout, result.output


def settings() -> dict[str, str]:
    """The file of settings on the page, with something in every place that a user fills in."""
    block = re.search(r"```sh\n# /etc/tiebreak/auditor.env\n(.*?)```", make_operating_docs.FILE.read_text(), re.DOTALL)
    assert block
    lines = block[1].replace("0x...", "0x" + "11" * 20).replace("https://...", "https://example.org/x").splitlines()
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("role", ["trainer", "auditor", "referee"])
def test_the_unit_runs_a_command_that_there_is(run: Run, role: str) -> None:
    (line,) = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(), re.MULTILINE)
    arguments = "" if role == "referee" else settings()["TIEBREAK_ARGUMENTS"]
    program, *words = shlex.split(line.replace("%i", role).replace("$TIEBREAK_ARGUMENTS", arguments))
    assert program.endswith("/bin/tiebreak")
    understood(run, words)


def test_the_settings_are_variables_that_there_are() -> None:
    known = (ROOT / "docs" / "reference" / "codes.md").read_text()
    unknown = [name for name in settings() if f"| `{name}` |" not in known]
    assert unknown == ["TIEBREAK_ARGUMENTS"], "that one is the unit's own"


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    # Only the program's place differs: verify wants it to be there.
    text = UNIT.read_text().replace("/opt/tiebreak/.venv/bin/tiebreak", "/bin/true")
    for role in ("trainer", "auditor", "referee"):
        unit = tmp_path / f"tiebreak@{role}.service"
        unit.write_text(text)
        found = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
        assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    broken = tmp_path / "tiebreak@broken.service"
    broken.write_text(text.replace("KillSignal=SIGINT", "KillSignal=SIGNONSENSE"))
    found = subprocess.run(["systemd-analyze", "verify", str(broken)], capture_output=True, text=True, timeout=60)
    assert "SIGNONSENSE" in found.stderr, "a fault would not be seen"


def test_the_container_copies_files_and_runs_commands_that_there_are(run: Run) -> None:
    text = (PLACE / "Containerfile").read_text()
    for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE):
        *sources, _ = line.split()
        assert [one for one in sources if not (ROOT / one).exists()] == []
    extras = re.search(r"'\.\[(\w+)\]'", text)
    assert extras and f"\n{extras[1]} = [" in (ROOT / "pyproject.toml").read_text()
    torch = re.search(r"torch==[0-9.]+", text)
    assert torch and f"TORCH ?= {torch[0]}\n" in (ROOT / "Makefile").read_text()
    (words,) = re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)
    understood(run, [word for word in yaml.safe_load(words) if word != "--help"])
    (command,) = re.findall(r"podman run .*?\\\n#(.*)$", text, re.MULTILINE)
    understood(run, shlex.split(command.split(" tiebreak ")[1]))
    assert "/health" in text
