"""An AArch64 Linux with a Python, in a folder: packages of Debian and PyPI, unpacked, and run by qemu's user-mode
emulation.

Nothing is installed and no root rights are needed: apt resolves and checks the packages with directories of its own,
and dpkg-deb unpacks them, the emulator too. What a folder holds is whole: it is made beside its name, and renamed."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from machines.profiles import Machine

ROOT = Path(__file__).resolve().parents[2]

MIRROR = "http://deb.debian.org/debian"
SUITE = "bookworm"
PYTHON = "3.11"
"""The Python of that suite."""
TORCH = "torch==2.10.0"
"""PyPI's last wheel for AArch64 that needs no library of CUDA. It runs jobs; to capture them takes 2.11, which is 3 GB
with CUDA's libraries."""

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SYSTEM = (f"python{PYTHON}", "libgomp1", "libstdc++6")
LIBRARIES = (
    *("numpy", "safetensors", "zstandard", "mpmath", "numba", "llvmlite", "rfc8785"),
    *("eth-abi", "eth-hash", "eth-typing", "eth-utils", "cytoolz", "toolz", "parsimonious", "regex", "pycryptodome"),
    *("annotated-types", "pydantic", "pydantic-core", "typing-inspection"),
    *("filelock", "fsspec", "jinja2", "markupsafe", "networkx", "sympy", "typing-extensions"),
)
"""Everything that the engine imports, and what that imports, besides PyTorch. pip cannot tell: it would read for this
machine which of its requirements PyTorch has on another."""

LANGUAGE = "transformers"
"""For models of language, with what it imports itself; in no folder `models`, whose modules it takes for models."""

_QEMU = "usr/bin/qemu-aarch64-static"

_TOOLS = {
    "apt-get": "run this on Debian or a system made of it (Ubuntu)",
    "dpkg-deb": "install the package dpkg",
}


class MissingToolError(RuntimeError):
    """A machine that lacks what the emulation is made with; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Emulation:
    """An AArch64 Python in a folder."""

    folder: Path

    def machine(self, threads: int = 1) -> Machine:
        """The profile whose processes run in it."""
        qemu, root = self.folder / "emulator" / _QEMU, self.folder / "system"
        paths = (ROOT / "engine", ROOT / "scripts", self.folder / "libraries", self.folder / "language")
        variables = {
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "PYTHONSAFEPATH": "1",
            "HOME": str(_own(self.folder / "home")),
            # numba compiles for minutes under emulation, for the first task alone if it is kept.
            "NUMBA_CACHE_DIR": str(_own(self.folder / "numba")),
        }
        python = root / f"usr/bin/python{PYTHON}"
        # Settings for this machine's programs.
        unset = [word for name in ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME") for word in ("-U", name)]
        return Machine(threads, variables, interpreter=(str(qemu), *unset, "-L", str(root), str(python)))


def prepared(folder: Path, mirror: str, told: Callable[[str], None]) -> Emulation:
    """The emulation in a folder, made there as far as it is not there yet. Raises MissingToolError, or
    CalledProcessError where a tool fails."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        raise MissingToolError(
            f"this compares Linux on x86-64 with an emulated AArch64, and here is {platform.system()} on "
            f"{platform.machine()}: run scripts/matrix.py, whose roots are those of docs/bit-equality.md"
        )
    for tool, remedy in _TOOLS.items():
        if shutil.which(tool) is None:
            raise MissingToolError(f"there is no {tool} here: {remedy}")
    if not KEYRING.exists():
        raise MissingToolError(f"there is no {KEYRING} here: install the package debian-archive-keyring")
    pip = _pip()
    folder = _own(folder)
    for name, digest, make in (
        ("emulator", f"{mirror} {SUITE}", lambda place: _emulator(place, mirror)),
        ("system", f"{mirror} {SUITE} {SYSTEM}", lambda place: _unpack(place, "arm64", SYSTEM, mirror)),
        ("libraries", " ".join(requirements()), lambda place: _install(place, pip, "--no-deps", *requirements())),
        ("language", LANGUAGE, lambda place: _install(place, pip, "-c", str(ROOT / "constraints.txt"), LANGUAGE)),
    ):
        stamp = sha256(digest.encode()).hexdigest()
        if _text(folder / f"{name}.stamp") == stamp:
            continue
        told(f"fetching the {name} into {folder / name}")
        (folder / f"{name}.stamp").unlink(missing_ok=True)
        for old in (folder / name, folder / f"{name}.partial"):
            shutil.rmtree(old, ignore_errors=True)
        make(folder / f"{name}.partial")
        (folder / f"{name}.partial").rename(folder / name)
        (folder / f"{name}.stamp").write_text(stamp)
    return Emulation(folder)


def requirements() -> list[str]:
    """PyTorch and the libraries, each with the version that constraints.txt names."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return [TORCH, *(f"{name}=={pinned[name]}" for name in LIBRARIES)]


def _own(folder: Path) -> Path:
    """A folder that nobody else writes to: numba runs what it finds in its cache."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder.resolve()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _pip() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip3") or shutil.which("pip")
    if found is None:
        raise MissingToolError("there is no pip here: install the package python3-pip")
    return [found]


def _install(place: Path, pip: Sequence[str], *wanted: str) -> None:
    platforms = [word for tag in ("manylinux_2_28", "manylinux2014") for word in ("--platform", f"{tag}_aarch64")]
    options = ["--only-binary=:all:", *platforms, "--implementation", "cp", "--python-version", PYTHON]
    _run([*pip, "install", "--quiet", *options, "--target", str(place), *wanted])


def _emulator(place: Path, mirror: str) -> None:
    _unpack(place, "amd64", ("qemu-user-static",), mirror)
    # Those of thirty other processors take 350 MB.
    for other in (place / _QEMU).parent.iterdir():
        if other != place / _QEMU:
            other.unlink()


_APT = """
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "";
Dir "{place}/";
Dir::Cache "{place}/";
Dir::Etc "{place}/";
Dir::Log "{place}/";
Dir::State "{place}/";
Dir::State::status "{place}/status";
"""


def _unpack(place: Path, architecture: str, packages: Sequence[str], mirror: str) -> None:
    """Packages of Debian, and all that they need, unpacked into a folder. apt works in a folder inside, which goes."""
    apt = place / "apt"
    for name in ("lists/partial", "archives/partial", "apt.conf.d", "preferences.d", "sources.list.d"):
        (apt / name).mkdir(parents=True)
    # No package is installed in there.
    (apt / "status").touch()
    (apt / "apt.conf").write_text(_APT.format(architecture=architecture, place=apt))
    (apt / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror} {SUITE} main\n")
    environment = {**os.environ, "APT_CONFIG": str(apt / "apt.conf")}
    _run(["apt-get", "-qq", "update"], environment)
    _run(["apt-get", "-qq", "--yes", "--download-only", "install", *packages], environment)
    for package in sorted((apt / "archives").glob("*.deb")):
        _run(["dpkg-deb", "--extract", str(package), str(place)])
    shutil.rmtree(apt)


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    subprocess.run(command, env=environment, check=True, stdin=subprocess.DEVNULL)
