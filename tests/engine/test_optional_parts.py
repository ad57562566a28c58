"""What few need stands behind a door: nothing of the core loads it."""

from __future__ import annotations

import subprocess
import sys

DOORS = (
    *("roundlog.execution.ranks", "roundlog.kernels.cuda", "roundlog.segment_audits.cluster"),
    *("tiebreak.http_server", "tiebreak.dashboard", "tiebreak.server"),
    *("ray", "triton", "starlette", "uvicorn", "jinja2"),
)
"""Parts that few need, and what only they, or the command line, load."""

CORE = f"""
import importlib, pkgutil, sys
import roundlog, tiebreak.roles

faces = [m.name for m in pkgutil.iter_modules(roundlog.__path__, "roundlog.")]
roles = [m.name for m in pkgutil.iter_modules(tiebreak.roles.__path__, "tiebreak.roles.")]
for name in [*faces, *roles, "roundlog.training.auditor", "roundlog.training.trainer", "roundlog.segment_audits.audit"]:
    importlib.import_module(name)
print([m for m in sorted(sys.modules) if any(m == door or m.startswith(door + ".") for door in {DOORS!r})])
"""


def test_the_core_loads_nothing_behind_a_door() -> None:
    done = subprocess.run([sys.executable, "-c", CORE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_of_the_demo_loads_the_demo_when_it_runs() -> None:
    command = [sys.executable, "-P", "-X", "importtime", "-m", "tiebreak", "demo", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "tiebreak.cli.demo" in done.stderr and "tiebreak_demo" not in done.stderr
