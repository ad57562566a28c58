"""A role as a forked process: everything is imported, and one job trained, before the first fork.

`multiprocessing`'s fork server imports this module once (see `parties.py`), so that a role starts in milliseconds.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from roundlog.training.auditor import Auditor
from roundlog.training.trainer import Trainer
from tiebreak.cli import app as command_line
from tiebreak.devnet import launcher as _devnet  # noqa: F401
from tiebreak.roles import auditor_role as _auditor  # noqa: F401
from tiebreak.roles import customer_role as _customer  # noqa: F401
from tiebreak.roles import job_role as _follower  # noqa: F401
from tiebreak.roles import referee_role as _referee  # noqa: F401
from tiebreak.roles import trainer_role as _trainer  # noqa: F401
from tiebreak.transactions import sender as _sender  # noqa: F401
from tiebreak_demo.adversary import parties as _dishonest  # noqa: F401

from tests.chaos.disks import obey
from tests.chaos.jobs import job_of


def _warm_up() -> None:
    """Load the compiled loops."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        job = job_of(0)
        Trainer(job, Path(name) / "run").run()
        Auditor(job, Path(name) / "audit", log_dir=Path(name) / "run" / "log").run()


if "CHAOS_FORK_SERVER" in os.environ:
    _warm_up()


def live(words: Sequence[str], environment: Mapping[str, str], output: str, directory: str, sign: str) -> None:
    """`tiebreak WORDS`, or one of our own commands, with everything that it prints in the file `output`."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    for name in [name for name in os.environ if name.startswith("TIEBREAK_")]:
        del os.environ[name]
    os.environ.update(environment)
    obey(Path(directory), Path(sign))
    sys.argv = ["tiebreak", *words]
    if words[0] == "misbehave":
        from tests.chaos.misbehaving import misbehave

        misbehave(words[1:])
    elif words[0] == "read-elsewhere":
        _read_elsewhere(words[1:])
    else:
        command_line.main()


def _read_elsewhere(words: Sequence[str]) -> None:
    """JOB DIRECTORY: fetches a job without its data, and without an account, and trains it from blocks that lie
    elsewhere. Commands that end with an error are given again; a run that was killed is carried on."""
    job, place = words[0], Path(words[1])
    if not (place / "job").exists():
        _until_done("job", "fetch", job, "--without-data", "--out", str(place / "job"), "--json")
    _until_done("train", str(place / "job"), "--run", str(place / "run"), "--json")


def _until_done(*words: str) -> None:
    while True:
        sys.argv = ["tiebreak", *words]
        try:
            command_line.main()
        except SystemExit as ended:
            if not ended.code:
                return
        time.sleep(0.5)
