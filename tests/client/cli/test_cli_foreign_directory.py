"""Commands in a directory that a stranger has made: no module that lies there is imported, in no process."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from tests.client.cli.cli_world import Chain, Run, Trained, refused
from tests.engine.kept_jobs import kept_job

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = str(Path(sys.executable).with_name("tiebreak"))
PLANTED = ("torch", "sitecustomize", "tiebreak", "roundlog", "multiprocessing", "numpy", "json", "selectors")


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A working directory with modules that leave a mark when they are imported."""
    directory = tmp_path / "foreign"
    directory.mkdir()
    for name in PLANTED:
        mark = tmp_path / f"ran {name}"
        (directory / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').close()\nraise SystemExit('planted')\n")
    (directory / "a.pth").write_text("import torch\n")
    return directory


def ran(directory: Path, words: Sequence[object], **settings: str) -> subprocess.CompletedProcess[str]:
    """A command, as a user's shell starts it in a directory."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env, command = {**kept, "OMP_NUM_THREADS": "1", **settings}, [str(word) for word in words]
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, check=False, timeout=300)


def marks(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.glob("ran *"))


def test_the_planted_modules_would_run(foreign: Path, tmp_path: Path) -> None:
    """So the other tests can fail."""
    assert ran(foreign, [sys.executable, "-c", "import torch"]).returncode
    assert marks(tmp_path) == ["ran torch"]


@pytest.mark.slow
def test_the_command_and_its_workers_import_nothing_from_there(foreign: Path, tmp_path: Path, trained: Trained) -> None:
    run, store = tmp_path / "run", ("--store", tmp_path / "store")
    done = ran(foreign, [SCRIPT, "train", trained.job, "--run", run, "--publish-every", 1, "--json", *store])
    assert done.returncode == 0, done.stderr
    words = [json.loads(done.stdout)["published_log"], "--workers", 2, "--result", tmp_path / "found.json", *store]
    done = ran(foreign, [SCRIPT, "audit", *words])
    assert done.returncode == 0, done.stderr
    assert not marks(tmp_path)


def test_every_process_that_is_started_by_a_module_keeps_the_directory_out() -> None:
    for file in [*(ROOT / "client").rglob("*.py"), *(ROOT / "engine").rglob("*.py")]:
        for start in re.findall(r"sys\.executable,[^\]]*", file.read_text()):
            assert '"-P"' in start, f"{file} starts {start}"


def test_the_module_refuses_to_run_where_it_would_look_there(foreign: Path, tmp_path: Path) -> None:
    (foreign / "tiebreak.py").unlink()
    done = ran(foreign, [sys.executable, "-m", "tiebreak", "--version"])
    assert done.returncode == 1 and "--no-python -- tiebreak" in done.stderr and "-P" in done.stderr
    for words, settings in (([sys.executable, "-P"], {}), ([sys.executable], {"PYTHONSAFEPATH": "1"})):
        done = ran(foreign, [*words, "-m", "tiebreak", "--version"], **settings)
        assert done.returncode == 0 and done.stdout.startswith("tiebreak"), done.stderr
    assert not marks(tmp_path)


# Systems without what only Linux has.


pytestmark = pytest.mark.slow

RUN = """
import os, signal, sys
import numba, torch, web3  # what libraries use on Linux is their affair
LACKED = (
    *("copy_file_range", "eventfd", "fdatasync", "getrandom", "getxattr", "memfd_create", "pidfd_open", "pipe2"),
    *("posix_fadvise", "posix_fallocate", "sched_getaffinity", "sched_setaffinity", "setxattr", "splice"),
    *("O_DIRECT", "O_NOATIME", "O_PATH"),
)
for name in LACKED:
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGRTMIN", "SIGPWR", "sigtimedwait"):
    if hasattr(signal, name):
        delattr(signal, name)

def caller():
    return sys._getframe(2).f_globals["__name__"]

def refuse(event, arguments):
    if event == "open" and str(arguments[0]).startswith("/proc/"):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])

sys.addaudithook(refuse)
from roundlog.data import files
files.HELD_BYTES = 0
from tiebreak.cli.app import main
main()
"""


def run(*arguments: object) -> str:
    command = [sys.executable, "-c", RUN, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_job_is_trained_and_audited_without_names_and_files_of_linux(tmp_path: Path) -> None:
    kept_job("logistic_sgd").write(tmp_path / "job")
    trained = run("train", tmp_path / "job", "--run", tmp_path / "trained")
    audited = run(
        "audit", tmp_path / "job", "--run", tmp_path / "audited", "--claim", tmp_path / "trained", "--log",
        tmp_path / "trained/log",
    )  # fmt: skip
    roots = [(tmp_path / name / "roots").read_bytes() for name in ("trained", "audited")]
    assert roots[0] == roots[1] and roots[0]
    assert trained and audited


# Pipes in the place of files.


SECONDS = 10.0


@contextmanager
def in_time() -> Iterator[None]:
    """A block that fails if it waits."""

    def too_late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it has waited for {SECONDS:g} seconds")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def room(tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory, the present one, with a `pipe`, and copies of a `job` and its `run`."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    shutil.copytree(trained.job, tmp_path / "job")
    shutil.copytree(trained.run, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        "account import new.json --from pipe",
        "audit job --run new --claim pipe",
        "verify pipe --job job --dir new",
        "trainer run --job 1 --keystore pipe --dir role",
        "devnet --state pipe",
    ],
)
def test_a_pipe_in_place_of_a_file_is_refused_at_once(run: Run, room: Path, chain: Chain, words: str) -> None:
    account = None if "--keystore" in words else 1
    with in_time():
        said = run(*words.split(), env={**chain.environment(account), "TIEBREAK_KEYSTORE_PASSWORD": "x"})
    assert said.exit_code in (1, 2) and isinstance(said.exception, SystemExit), said.output
    assert "Error" in said.stderr and "Traceback" not in said.output
    assert "import" not in words or "the key file pipe cannot be read (it is not a regular file)" in said.stderr


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("job/data.safetensors", "audit job --run new"),
        ("run/roots", "audit job --run new --claim run"),
        ("store/lock", "job publish job --store store"),
    ],
)
def test_a_pipe_in_a_directory_that_is_read_keeps_nobody_waiting(run: Run, room: Path, place: str, words: str) -> None:
    path = room / place
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with in_time():
        refused(run(*words.split()))
