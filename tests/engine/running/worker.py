"""A trainer or auditor in a process of its own: `python worker.py ROLE JOB RUN [LOG [SHARE]]` prints one JSON line.
The role "audit twice" audits with the log and then without."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.trainer import Trainer


def main(role: str, job_dir: str, run_dir: str, log_dir: str = "", share: str = "0.05") -> None:
    job = Job.read(Path(job_dir))

    def tell(event) -> None:
        print(event.step, file=sys.stderr, flush=True)

    if role == "train":
        result = Trainer(job, Path(run_dir), RunOptions(on_step=tell)).run()
        found = []
    else:
        log = Path(log_dir) if log_dir else None
        result = Auditor(job, Path(run_dir), RunOptions(on_step=tell), log_dir=log, verify_log=float(share)).run()
        found = [asdict(finding) for finding in result.findings]
        if role == "audit twice":
            alone = Auditor(job, Path(f"{run_dir} alone")).run()
            assert alone.checkpoint_root == result.checkpoint_root
    print(json.dumps({"root": result.checkpoint_root.hex(), "findings": found}))


main(*sys.argv[1:])
