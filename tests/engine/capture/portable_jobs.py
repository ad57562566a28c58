"""Print what tasks are on this machine, as JSON: `python portable_jobs.py tensors|job portable|torch TASK ...`

TASK is an example, or transformers/KIND; all are made if none is named, with the numbers of `portable` or PyTorch's.
Printed are, for each, a digest of its tensors or the roots of its job, and what PyTorch itself has computed."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from hashlib import sha256

from machines.hugging_face import KINDS
from machines.tasks import SMALL
from roundlog.capture import Task, portable, torchs_own
from roundlog.capture.captured import model_tensors
from roundlog.commitments import tensor_root
from roundlog.training.job import Job


def digest_of(task: Task) -> str:
    digest = sha256()
    for tensor in model_tensors(task.model).values():
        digest.update(tensor_root(tensor.detach()))
    for field in task.fields().values():
        digest.update(bytes(field.read(0, field.nbytes)))
    return digest.hexdigest()


def roots_of(task: Task) -> list[str]:
    spec = Job.from_task(lambda: task).spec
    return [root.hex() for root in (spec.program_root, spec.initial_state_root, spec.data_root, spec.schedule_root)]


def main(what: str, numbers: str, *names: str) -> None:
    warnings.simplefilter("ignore")
    known, found = {**SMALL, **{f"transformers/{kind}": make for kind, make in KINDS.items()}}, {}
    for name in names or known:
        with torchs_own() if numbers == "torch" else contextlib.nullcontext(), portable() as drawn:
            task = known[name](2)
            made = digest_of(task) if what == "tensors" else roots_of(task)
        found[name] = [made, [] if drawn is None else [*drawn.unportable]]
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
