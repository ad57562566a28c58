"""Compiled loops are those of the sources that are there, and nobody else's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from roundlog import kernels
from roundlog.kernels.cache import SharedFiles, place_for

ROUND = (
    "import numpy as np; from roundlog.kernels.rounding_loops import ends; "
    "print(ends(np.ones(1), np.zeros(1), 1.0)[0][0])"
)


@dataclass(frozen=True)
class Installed:
    """A copy of the package's loops, and the places where their machine code may be kept."""

    room: Path

    @property
    def folder(self) -> Path:
        return self.room / "roundlog" / "kernels"

    @property
    def inside(self) -> Path:
        return self.folder / "__pycache__"

    @property
    def user(self) -> Path:
        return self.room / "user"

    def rounded(self) -> subprocess.CompletedProcess[str]:
        """Result of a process that rounds 1 by a loop; it leaves its machine code somewhere."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
        environment |= {
            "PYTHONPATH": str(self.room),
            "XDG_CACHE_HOME": str(self.user),
            "TMPDIR": str(self.room / "tmp"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return subprocess.run(
            [sys.executable, "-c", ROUND], env=environment, cwd=self.room, capture_output=True, text=True, check=True
        )

    def kept(self, place: Path) -> list[Path]:
        return sorted(place.rglob("rounding_loops._ends*.nbc"))

    def change_a_constant(self) -> None:
        """Change a constant in another file than that of the loop."""
        marking = self.folder / "marking.py"
        marking.write_text(marking.read_text().replace("TWO_UNITS = 2.0 * 2.0**-53", "TWO_UNITS = 0.5"))

    def close_the_package(self) -> None:
        """Make the package one that cannot be written to, even by a superuser, who can write everywhere."""
        shutil.rmtree(self.inside, ignore_errors=True)
        self.inside.write_text("")


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    made = Installed(tmp_path)
    engine = Path(kernels.__file__).parents[1]
    for room in ("kernels", "definitions", "program"):
        shutil.copytree(engine / room, made.folder.parent / room, ignore=lambda *_: ["__pycache__"])
    (made.folder.parent / "__init__.py").touch()
    for path in (made.room / "tmp", made.user):
        path.mkdir(mode=0o700)
    return made


@pytest.mark.slow
def test_a_constant_in_another_file_makes_loops_compiled_anew(installed: Installed) -> None:
    """Where the package cannot be written to, so that they are kept in the user's cache."""
    installed.close_the_package()
    assert installed.rounded().stdout.strip() == "1.0"
    first = installed.kept(installed.user)
    assert len(first) == 1 and installed.kept(installed.room) == first
    written = first[0].stat().st_mtime_ns
    # Taken from the cache.
    assert installed.rounded().stdout.strip() == "1.0"
    assert installed.kept(installed.user) == first and first[0].stat().st_mtime_ns == written
    installed.change_a_constant()
    assert installed.rounded().stdout.strip() == "0.5"
    # The code of the old sources is gone.
    assert len(installed.kept(installed.room)) == 1 and not first[0].exists()


@pytest.mark.parametrize("damaged", [lambda data: data[: len(data) // 2], lambda data: b""], ids=["truncated", "empty"])
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_a_torn_file_is_written_anew(damaged: Callable[[bytes], bytes], suffix: str, tmp_path: Path) -> None:
    files = SharedFiles(str(tmp_path), "loop", "stamp")
    files.save("key", ("machine", "code", b"x" * 1000))
    assert files.load("key") == ("machine", "code", b"x" * 1000)
    (file,) = tmp_path.glob(f"*.{suffix}")
    right = file.read_bytes()
    file.write_bytes(damaged(right))
    assert files.load("key") is None
    files.save("key", ("machine", "code", b"x" * 1000))
    assert file.read_bytes() == right
    assert SharedFiles(str(tmp_path), "loop", "another stamp").load("key") is None


def test_processes_that_write_at_once_mix_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each knows the index of before the other's."""
    first, second = (SharedFiles(str(tmp_path), "loop", "stamp") for _ in range(2))
    written = first._save_data

    def slowly(name: str, data: object) -> None:
        second.save("its key", "its code")
        written(name, data)

    monkeypatch.setattr(first, "_save_data", slowly)
    monkeypatch.setattr(second, "_load_index", dict)
    first.save("key", "code")
    loaded = SharedFiles(str(tmp_path), "loop", "stamp")
    assert loaded.load("key") in ("code", None) and loaded.load("its key") in ("its code", None)
    assert {loaded.load("key"), loaded.load("its key")} != {None}


@pytest.mark.parametrize("how", ["others can write", "a group can write", "another's", "a link"])
def test_a_place_that_is_not_ours_alone_is_not_read(how: str, tmp_path: Path) -> None:
    if how == "another's" and os.geteuid():
        pytest.skip("only a superuser gives files away")
    chosen, package = tmp_path / "chosen", tmp_path / "package"
    package.mkdir()
    place = place_for(package, "a" * 64, str(chosen))
    assert place.parent == chosen and place.stat().st_mode & 0o777 == 0o700
    if how == "another's":
        os.chown(place, 4321, -1)
    elif how == "a link":
        place.symlink_to(place.rename(tmp_path / "moved"))
    else:
        place.chmod(0o777 if how == "others can write" else 0o770)
    assert place_for(package, "a" * 64, str(chosen)).parent == package / "__pycache__"


@pytest.mark.slow
def test_where_no_place_can_be_written_to_loops_are_kept_for_a_process_only(installed: Installed) -> None:
    installed.close_the_package()
    installed.user.rmdir()
    installed.user.write_text("")
    done = installed.rounded()
    assert done.stdout.strip() == "1.0"
    assert "set NUMBA_CACHE_DIR to a directory that you can write to" in done.stderr
    assert not installed.kept(installed.room) and not list((installed.room / "tmp").iterdir())
