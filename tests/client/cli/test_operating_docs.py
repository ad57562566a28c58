"""The page for operators: its tables, and the files beside it, as far as they can be tried here."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import make_operating_docs
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tiebreak.operation.metrics import Metrics
from tiebreak.operation.monitor import Cause, RoleMonitor

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


# Rules for Prometheus.


GROUPS = yaml.safe_load((PLACE / "alerts.yml").read_text())["groups"]
RULES: dict[str, dict[str, Any]] = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
TERM = r"(?:time\(\)|[0-9.]+|increase\((?P<rate>\w+)\[1h\]\)|(?P<metric>\w+)(?:\{job=\"tiebreak\"\})?)"
"""A part of an expression: a number, the time, or a metric and how much it has risen."""


def test_every_rule_compares_metrics_that_are_served() -> None:
    metrics = Metrics(RoleMonitor("trainer"))
    families = text_string_to_metric_families(metrics.text().decode())
    # `up` is Prometheus' own: whether the endpoint answered.
    served = {one.name for family in families for one in family.samples} | {"up"}
    read: set[str] = set()
    for name, rule in RULES.items():
        left, sign, right = re.split(r" (==|<|>) ", rule["expr"])
        for term in re.split(r" [-+] ", f"{left} + {right}"):
            found = re.fullmatch(TERM, term)
            assert found and sign, f"{name}: {term}"
            read |= {one for one in found.groups() if one}
    assert read and read <= served, read - served
