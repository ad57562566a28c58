"""Compiled loops are those of the sources that are there, and nobody else's."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest
from roundlog import kernels
from roundlog.kernels.cache import CheckedFiles, not_ours_alone, place_for

ROUND = (
    "import numpy as np; from roundlog.kernels.rounding_loops import ends; "
    "print(ends(np.ones(1), np.zeros(1), 1.0)[0][0])"
)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="rights of files are those of POSIX")


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

    @property
    def chosen(self) -> Path:
        return self.room / "chosen"

    def rounded(self, choose: bool = False) -> subprocess.CompletedProcess[str]:
        """Result of a process that rounds 1 by a loop; it leaves its machine code somewhere."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
        environment |= {
            "PYTHONPATH": str(self.room),
            "XDG_CACHE_HOME": str(self.user),
            "TMPDIR": str(self.room / "tmp"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        environment |= {"NUMBA_CACHE_DIR": str(self.chosen)} if choose else {}
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


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "one bit": lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
    "another pickle": lambda data: pickle.dumps(("0", {"a": 1})),
}


@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_a_damaged_file_is_thrown_away(what: str, suffix: str, tmp_path: Path) -> None:
    files = CheckedFiles(str(tmp_path), "loop", "stamp")
    files.save("key", ("machine", "code", b"x" * 1000))
    assert files.load("key") == ("machine", "code", b"x" * 1000)
    (file,) = tmp_path.glob(f"*.{suffix}")
    right = file.read_bytes()
    file.write_bytes(DAMAGES[what](right))
    assert files.load("key") is None and not file.exists()
    files.save("key", ("machine", "code", b"x" * 1000))
    assert file.read_bytes() == right
    assert CheckedFiles(str(tmp_path), "loop", "another stamp").load("key") is None


def test_processes_that_write_at_once_mix_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each knows the index of before the other's."""
    first, second = (CheckedFiles(str(tmp_path), "loop", "stamp") for _ in range(2))
    written = first._save_data

    def slowly(name: str, data: object) -> None:
        second.save("its key", "its code")
        written(name, data)

    monkeypatch.setattr(first, "_save_data", slowly)
    monkeypatch.setattr(second, "_load_index", dict)
    first.save("key", "code")
    loaded = CheckedFiles(str(tmp_path), "loop", "stamp")
    assert loaded.load("key") in ("code", None) and loaded.load("its key") in ("its code", None)
    assert {loaded.load("key"), loaded.load("its key")} != {None}


class Evil:
    """Unpickled, it leaves a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.slow
def test_a_place_that_others_can_write_to_is_not_read(installed: Installed) -> None:
    installed.rounded(choose=True)
    mark = installed.room / "unpickled"
    for file in [*installed.chosen.rglob("*.nbi"), *installed.chosen.rglob("*.nbc")]:
        content = pickle.dumps(Evil(mark))
        file.write_bytes(sha256(content).digest() + content)
    installed.chosen.chmod(0o777)
    assert installed.rounded(choose=True).stdout.strip() == "1.0"
    assert not mark.exists() and len(installed.kept(installed.inside)) == 1


@pytest.mark.parametrize("how", ["others can write", "a group can write", "another's", "a link of another's"])
def test_another_place_is_taken(how: str, tmp_path: Path) -> None:
    if "another's" in how and os.geteuid():
        pytest.skip("only a superuser gives files away")
    chosen, package = tmp_path / "chosen", tmp_path / "package"
    package.mkdir()
    assert place_for(package, "a" * 64, str(chosen)).parent == chosen
    if how == "another's":
        os.chown(chosen, 4321, -1)
    elif how == "a link of another's":
        moved = chosen.rename(tmp_path / "moved")
        chosen.symlink_to(moved)
        os.chown(chosen, 4321, -1, follow_symlinks=False)
    else:
        chosen.chmod(0o777 if how == "others can write" else 0o770)
    assert place_for(package, "a" * 64, str(chosen)).parent == package / "__pycache__"


def test_what_others_could_write_before_a_place_was_closed_is_thrown_away(tmp_path: Path) -> None:
    place = place_for(tmp_path, "a" * 64, "")
    inner = place / "inner"
    inner.mkdir()
    (inner / "good").touch()
    assert place_for(tmp_path, "a" * 64, "") == place and (inner / "good").exists()
    inner.chmod(0o777)
    (inner / "bad").touch()
    assert place_for(tmp_path, "a" * 64, "") == place and not any(place.iterdir())
    (place / "link").symlink_to(tmp_path)
    assert place_for(tmp_path, "a" * 64, "") == place and not any(place.iterdir())


@pytest.mark.slow
def test_where_no_place_is_ours_alone_loops_are_kept_for_a_process_only(installed: Installed) -> None:
    installed.close_the_package()
    installed.user.chmod(0o777)
    done = installed.rounded()
    assert done.stdout.strip() == "1.0"
    assert f"others can write to {installed.user}" in done.stderr
    assert "set NUMBA_CACHE_DIR to a directory that only you can write to" in done.stderr
    assert not installed.kept(installed.room) and not list((installed.room / "tmp").iterdir())


def test_a_directory_is_ours_alone_or_it_is_said_why_not(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert not_ours_alone(inner) is None and not_ours_alone(inner / "not yet" / "there") is None
    (tmp_path / "a").chmod(0o777)
    assert not_ours_alone(inner) == f"others can write to {tmp_path / 'a'}"
    # As /tmp: nobody renames what belongs to another.
    (tmp_path / "a").chmod(0o1777)
    assert not_ours_alone(inner) is None
    assert not_ours_alone(tmp_path / "a") == f"others can write to {tmp_path / 'a'}"
    (tmp_path / "a").chmod(0o755)
    (tmp_path / "link").symlink_to(inner)
    assert not_ours_alone(tmp_path / "link") is None
    (tmp_path / "file").touch()
    assert not_ours_alone(tmp_path / "file" / "c") is not None
    if os.geteuid() == 0:
        os.chown(tmp_path / "a", 4321, -1)
        assert not_ours_alone(inner) == f"{tmp_path / 'a'} belongs to user 4321"
        assert not_ours_alone(tmp_path / "link") == f"{tmp_path / 'a'} belongs to user 4321"
