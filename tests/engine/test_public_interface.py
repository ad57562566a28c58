"""The names that `roundlog` offers, and what the core leaves behind its doors: what few need is not loaded."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

import pytest
import roundlog

DOORS = (
    *("roundlog.execution.ranks", "roundlog.kernels.cuda", "roundlog.segment_audits.cluster"),
    *("tiebreak.http_server", "tiebreak.dashboard", "tiebreak.server"),
    *("ray", "triton", "starlette", "uvicorn", "jinja2"),
)
"""Parts that few need, and what only they, or the command line, load."""

CORE = f"""
import importlib, pkgutil, sys
import roundlog
assert not [name for name in ("torch", "numpy", "numba") if name in sys.modules], "the interface alone is light"
import tiebreak.roles

faces = [m.name for m in pkgutil.iter_modules(roundlog.__path__, "roundlog.")]
roles = [m.name for m in pkgutil.iter_modules(tiebreak.roles.__path__, "tiebreak.roles.")]
for name in [*faces, *roles, "roundlog.training.auditor", "roundlog.training.trainer", "roundlog.segment_audits.audit"]:
    importlib.import_module(name)
print([m for m in sorted(sys.modules) if any(m == door or m.startswith(door + ".") for door in {DOORS!r})])
"""


def names_of(room: ModuleType) -> list[str]:
    with pytest.raises(AttributeError, match=f"{room.__name__} has no nothing: its public names are ") as refused:
        room.nothing  # noqa: B018
    return str(refused.value).split("are ")[1].split(", ")


def test_every_public_name_is_there_and_documented_and_no_other_is_public() -> None:
    assert [name for name in roundlog.__all__ if not (getattr(roundlog, name).__doc__ or "").strip()] == []
    assert dir(roundlog) == sorted(roundlog.__all__) == names_of(roundlog)


@pytest.mark.parametrize("room", ["roundlog.segment_audits", "roundlog.training"])
def test_a_room_that_loads_its_names_when_they_are_used_has_each_of_them(room: str) -> None:
    face = import_module(room)
    names = names_of(face)
    assert names and not {*names} & {module.name for module in iter_modules(face.__path__)}
    for name in names:
        assert getattr(face, name) is face.__dict__[name]


def test_the_core_loads_nothing_behind_a_door() -> None:
    done = subprocess.run([sys.executable, "-c", CORE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_of_the_demo_loads_the_demo_when_it_runs() -> None:
    command = [sys.executable, "-P", "-X", "importtime", "-m", "tiebreak", "demo", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "tiebreak.cli.demo" in done.stderr and "tiebreak_demo" not in done.stderr
