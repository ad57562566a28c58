"""The command line without what only Linux has, as on macOS: names of `os`, and the files under /proc.

It says nothing about what macOS does otherwise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from machines.tasks import SMALL
from roundlog.training.job import Job

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
    Job.from_task(lambda: SMALL["logistic"](2)).write(tmp_path / "job")
    trained = run("train", tmp_path / "job", "--run", tmp_path / "trained")
    audited = run(
        "audit", tmp_path / "job", "--run", tmp_path / "audited", "--claim", tmp_path / "trained", "--log",
        tmp_path / "trained/log",
    )  # fmt: skip
    roots = [(tmp_path / name / "roots").read_bytes() for name in ("trained", "audited")]
    assert roots[0] == roots[1] and roots[0]
    assert trained and audited
