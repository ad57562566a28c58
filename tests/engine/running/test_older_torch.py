"""A job that was captured elsewhere runs with PyTorch 2.10, which captures none: AArch64 has no newer one without CUDA.

That version is not here: its absence is played. `scripts/other_architecture.py` runs jobs with it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import roundlog
import torch
from machines.tasks import SMALL
from roundlog.capture import CaptureError
from roundlog.training.job import Job
from roundlog.training.trainer import Trainer

from tests.engine.kept_jobs import KEPT_JOBS, kept_job

NEW = {
    *("FlattenFn", "FlattenWithKeysFn", "TraceableWrapperSubclass", "UnflattenFn", "any_torch_dispatch_mode_on_stack"),
    *("all_gather_single", "record_comm", "reduce_scatter_single", "caching_allocator_disabled"),
    *("const_data_ptr", "current_solver_handle", "linear_cross_entropy", "thread_safe_generator"),
    *("_foreach_clone", "_foreach_mm", "_foreach_powsum", "_philox_normal_", "_philox_uniform_"),
}
"""Names of torch, Tensor, torch.nn.functional, .distributed, .cuda and .utils that 2.13 has and 2.10 has not."""

RUN = """
import sys
from pathlib import Path
import torch
torch.__version__ = "2.10.0+cpu"
class NotThere:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("roundlog.capture", "roundlog.examples", "torch._decomp", "torch.fx.experimental.proxy")):
            raise ImportError(name)
sys.meta_path.insert(0, NotThere())
from roundlog import Auditor, Job, Trainer
job, room = Job.read(Path(sys.argv[1])), Path(sys.argv[2])
trained = Trainer(job, room / "trained").run()
audited = Auditor(job, room / "audited", log_dir=trained.log_dir, verify_log=1.0).run()
assert audited.findings == [] and audited.checkpoint_root == trained.checkpoint_root
print(trained.checkpoint_root.hex())
"""


@pytest.mark.slow
def test_a_job_is_read_trained_and_audited_without_what_captures(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUN, str(KEPT_JOBS / "logistic_sgd"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    here = Trainer(kept_job("logistic_sgd"), tmp_path / "here").run().checkpoint_root
    assert done.stdout.strip() == here.hex(), done.stderr


def test_what_runs_jobs_uses_no_name_that_the_older_one_lacks() -> None:
    room = Path(roundlog.__file__).parent
    used = [
        f"{path.name}:{node.lineno} {name}"
        for path in sorted(room.rglob("*.py"))
        if path.relative_to(room).parts[0] not in ("capture", "examples")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in _names(node)
        if name in NEW
    ]
    assert used == []


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Attribute):
        return [node.attr]
    return [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []


@pytest.mark.parametrize("version", ["2.10.0+cpu", "2.11.0a0+git1234"])
def test_a_capture_with_an_older_one_is_refused_in_a_sentence(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = SMALL["logistic"](2)
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(CaptureError) as refused:
        Job.from_task(lambda: task)
    assert str(refused.value) == (
        f"PyTorch {version} runs and audits jobs, but captures none: install PyTorch 2.11 or newer, or capture on "
        "another machine"
    )
