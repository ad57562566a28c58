"""The names that `roundlog` offers."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest
import roundlog


@pytest.mark.parametrize("name", roundlog.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert (getattr(roundlog, name).__doc__ or "").strip()


def test_no_other_name_is_public() -> None:
    assert dir(roundlog) == sorted(roundlog.__all__) and set(" ".join(roundlog._ROOMS.values()).split()) == set(
        roundlog.__all__
    )
    with pytest.raises(AttributeError, match="its public names are Auditor"):
        roundlog.nothing  # noqa: B018


@pytest.mark.parametrize("room", ["roundlog.segment_audits", "roundlog.training"])
def test_a_room_that_loads_its_names_when_they_are_used_has_each_of_them(room: str) -> None:
    face = import_module(room)
    homes = {name: file for file, names in face._FILES.items() for name in names.split()}
    assert homes and not {*homes} & {*homes.values()}
    for name, file in homes.items():
        assert getattr(face, name) is getattr(import_module(f"{room}.{file}"), name)
    with pytest.raises(AttributeError, match=f"{room} has no nothing: its public names are"):
        face.nothing  # noqa: B018


def test_the_interface_alone_loads_nothing_heavy() -> None:
    code = "import sys, roundlog; print([name for name in ('torch', 'numpy', 'numba') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
