"""The names that `roundlog` offers."""

from __future__ import annotations

import subprocess
import sys

import pytest
import roundlog


@pytest.mark.parametrize("name", roundlog.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert (getattr(roundlog, name).__doc__ or "").strip()


def test_no_other_name_is_public() -> None:
    assert dir(roundlog) == sorted(roundlog.__all__) and set(roundlog._ROOMS) == set(roundlog.__all__)
    with pytest.raises(AttributeError, match="its public names are Auditor"):
        roundlog.nothing  # noqa: B018


def test_the_interface_alone_loads_nothing_heavy() -> None:
    code = "import sys, roundlog; print([name for name in ('torch', 'numpy', 'numba') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
