"""`job create`: a customer's own Python file becomes a job, or one sentence says where it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from roundlog.capture.builder import Value
from roundlog.capture.rules import RULES
from roundlog.capture.rules.rule_table import Context
from roundlog.execution.microbatch import samples_of
from roundlog.training.job import Job
from roundlog.training.run_cost import run_bytes
from tiebreak.cli.task_source import load_task

from tests.client.cli.cli_world import Run, refused

TASK = """
import torch
from roundlog.capture import Task
from helper import FACTOR

def loss(model, batch):
    return ((model(batch["x"]) - batch["y"]) ** 2).mean()

def line(*, steps: int = 4, rate: float = 0.1, negative: bool = False):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    x = torch.randn(32, 2) * (-FACTOR if negative else FACTOR)
    return Task(
        model=model, loss=loss, optimizer=torch.optim.SGD(model.parameters(), lr=rate),
        dataset={"x": x, "y": x[:, :1] + x[:, 1:]}, batch_size=4, steps=steps, interval=2, seed=1,
    )

def misses():
    task = line()
    return Task(model=task.model, loss=lambda model, batch: model(batch["labels"]).mean(), optimizer=task.optimizer,
        dataset=task.dataset, batch_size=4, steps=4, interval=2, seed=1)

def number():
    return 3

def breaks():
    nothing = 0
    return 1 / nothing

def planted():
    task = line()
    def squashed(model, batch):
        return torch.tanh(model(batch["x"])).square().mean()
    return Task(model=task.model, loss=squashed, optimizer=torch.optim.SGD(task.model.parameters(), lr=0.1),
        dataset=task.dataset, batch_size=4, steps=4, interval=2, seed=1)

def bends():
    task = line()
    def strange(model, batch):
        return torch.special.i0e(model(batch["x"])).mean()
    return Task(model=task.model, loss=strange, optimizer=torch.optim.SGD(task.model.parameters(), lr=0.1),
        dataset=task.dataset, batch_size=4, steps=4, interval=2, seed=1)
"""


def line_of(code: str) -> int:
    """Number of the line of the file that holds it, counted from 1."""
    return next(number for number, text in enumerate(TASK.splitlines(), 1) if code in text)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "helper.py").write_text("FACTOR = 2.0\n")
    path = tmp_path / "my_task.py"
    path.write_text(TASK)
    return path


def test_a_function_of_a_file_becomes_a_job(run: Run, file: Path, tmp_path: Path) -> None:
    result = run("job", "create", f"{file}:line", "--out", tmp_path / "job", "--set", "steps=6", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    job = Job.read(tmp_path / "job")
    assert found["spec"]["steps"] == job.spec.steps == 6
    assert found["spec"]["program_root"] == "0x" + job.spec.program_root.hex()
    assert any(f"my_task.py:{line_of('** 2')}" in node.source for node in job.program.nodes)
    assert found["sameness"]["steps"] == 3 and found["sameness"]["in_fp64"]
    shown = run("job", "show", tmp_path / "job")
    assert shown.exit_code == 0 and "0x" + job.spec.run_id.hex() in shown.stdout


@pytest.mark.slow
def test_a_check_leaves_the_comparison_out(
    run: Run, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("job", "create", f"{file}:line", "--out", tmp_path / "job")
    right = RULES["mean"]
    with monkeypatch.context() as patch:
        patch.setitem(RULES, "mean", lambda c, *args: c.op("mul", right(c, *args), c.f32(1.01)))
        said = run(*words, "--check")
        made = run(*words)
        assert made.exit_code == 1 and "the captured step is not yours" in made.stderr.splitlines()[-1]
        assert "a run      memory" in made.stderr and not made.stdout
    assert said.exit_code == 0 and "No job yet" in said.stdout and "run id" not in said.stdout
    checked = json.loads(run(*words, "--check", "--json").stdout)
    assert not (tmp_path / "job").exists()
    made = json.loads(run(*words, "--json").stdout)
    assert checked.items() >= {name: made[name] for name in ("spec", "run_id", "step_bytes", "state_bytes")}.items()
    assert checked["accepted"] and not checked["is_job"] and checked["checkpoint_bytes"] == 2 * made["state_bytes"]
    assert f"{checked['dispute_moves']} moves of each side" in said.stdout and checked["dispute_gas"] == 5_000_000
    by_log = run("job", "create", f"{file}:line", "--check", "--policy", "threshold")
    assert by_log.exit_code == 0 and "no contract rounds as this job does" in by_log.stdout


def test_checks_answer_no_to_tasks_that_are_refused(run: Run, file: Path, tmp_path: Path) -> None:
    said = run("job", "create", f"{file}:bends", "--check")
    assert said.exit_code == 3 and "bends becomes no job: " in said.stdout and "special_i0e" in said.stdout
    said = run("job", "create", f"{file}:misses", "--check", "--json")
    assert said.exit_code == 3 and "KeyError: 'labels'" in json.loads(said.stdout)["refusal"]
    refused(run("job", "create", f"{file}:line", "--check", "--out", tmp_path), "is not an empty directory")
    refused(run("job", "create", f"{file}:line", "--check", "--reward", "1wei"), "leave --reward away", code=2)


TYPED = """
from __future__ import annotations
from typing import TYPE_CHECKING
import my_task
if TYPE_CHECKING:
    from torch import dtype
    from roundlog import Task

def line(*, steps: int = 4, kind: dtype | None = None) -> Task:
    return my_task.line(steps=steps)
"""


def test_types_that_only_a_type_checker_knows_are_no_hindrance(run: Run, file: Path, tmp_path: Path) -> None:
    typed = tmp_path / "typed.py"
    typed.write_text(TYPED)
    words = ("job", "create", f"{typed}:line", "--out", tmp_path / "job")
    refused(run(*words, "--set", "kind=float32"), "the type of kind in", "typed.py:line cannot be evaluated", "dtype")
    assert load_task(f"{typed}:line", ["steps=6"])().steps == 6


@pytest.mark.parametrize(
    ("source", "settings", "parts"),
    [
        ("nothing", [], ["nothing is no task", "digits, gpt, gpt2, logistic, resnet50, vgg11"]),
        ("{file}:number", [], ["returns int", "roundlog.capture.Task"]),
        ("{file}:breaks", [], [f"my_task.py, line {line_of('1 / nothing')}", "ZeroDivisionError", "correct it"]),
        ("{file}:bends", [], ["special_i0e", f"my_task.py:{line_of('i0e')}"]),
        ("{file}:line", ["colour=red"], ["colour=red sets no parameter", "steps, rate, negative"]),
        ("{room}/torn.py:f", [], ["torn.py, line 1", "SyntaxError"]),
    ],
)
def test_what_is_wrong_with_a_task_is_said_in_one_sentence(
    run: Run, file: Path, tmp_path: Path, source: str, settings: list[str], parts: list[str]
) -> None:
    (tmp_path / "torn.py").write_text("def f(:\n")
    words = [word for setting in settings for word in ("--set", setting)]
    refused(run("job", "create", source.format(file=file, room=tmp_path), "--out", tmp_path / "job", *words), *parts)
    assert not (tmp_path / "job").exists()


@pytest.mark.slow
def test_a_job_that_fits_no_allowed_memory_is_not_written(run: Run, file: Path, tmp_path: Path) -> None:
    """The bound is the least memory that a party needs, with batches cut into single samples."""
    words = ("job", "create", f"{file}:line", "--set", "steps=6")
    assert run(*words, "--out", tmp_path / "any").exit_code == 0
    job = Job.read(tmp_path / "any")
    least = run_bytes(job.program, job.spec, samples_of(job.program))
    assert least < run_bytes(job.program, job.spec)
    words = (*words, "--out", tmp_path / "job", "--max-memory")
    said = (f"my_task.py:line needs {least} bytes of memory", "raise --max-memory")
    refused(run(*words, f"{(least - 1) / 1e6:.6f}MB"), *said)
    assert not (tmp_path / "job").exists()
    assert run(*words, f"{least / 1e6:.6f}MB").exit_code == 0
    assert Job.read(tmp_path / "job").spec == job.spec


def test_terms_need_a_reward_and_a_reward_needs_a_referee(run: Run, file: Path, tmp_path: Path) -> None:
    words = ("job", "create", f"{file}:line", "--out", tmp_path / "job")
    refused(run(*words, "--trainer-bond", "1ether"), "no --reward")
    refused(run(*words, "--reward", "1ether"), "--referee")
    assert not (tmp_path / "job").exists()


@pytest.mark.slow
def test_policy_and_bits_are_part_of_the_job_and_its_audits(run: Run, file: Path, tmp_path: Path) -> None:
    job, log = tmp_path / "job", tmp_path / "run" / "log"
    made = run("job", "create", f"{file}:line", "--out", job, "--policy", "threshold", "--bits", 26, "--json")
    assert made.exit_code == 0, made.stderr
    spec = json.loads(made.stdout)["spec"]
    assert (spec["rounding_policy"], spec["rounding_bits"]) == (1, 26)
    assert "threshold, 26 bits" in run("job", "show", job).stdout
    (tmp_path / "tau.json").write_text('{"default": 0.4, "operators": {"matmul": 0.3}}')
    trained = run("train", job, "--run", tmp_path / "run", "--thresholds", tmp_path / "tau.json", "--json")
    assert trained.exit_code == 0, trained.stderr
    audited = run("audit", job, "--run", tmp_path / "audit", "--log", log, "--claim", tmp_path / "run")
    assert audited.exit_code == 0, audited.stderr
    assert "audit it with the trainer's log" in refused(run("audit", job, "--run", tmp_path / "alone"))


@pytest.mark.slow
def test_random_numbers_are_portable_and_torchs_own_on_request(run: Run, file: Path, tmp_path: Path) -> None:
    roots = {}
    for name, words in {"one": (), "two": (), "own": ("--torch-random",)}.items():
        result = run("job", "create", f"{file}:line", "--out", tmp_path / name, "--json", *words)
        found = json.loads(result.stdout)
        roots[name] = found["spec"]["initial_state_root"]
        assert (found["random"], found["unportable"]) == (("torch", None) if words else ("portable", {}))
        assert result.stderr == ""
    assert roots["one"] == roots["two"] != roots["own"]
    result = run("job", "create", f"{file}:line", "--out", tmp_path / "said", "--torch-random")
    assert "--torch-random" in result.stdout and "another job" in " ".join(result.stdout.split())
    refused(run("job", "create", tmp_path / "one", "--torch-random"), "is a job already")


# Defects of this program.


def broken(c: Context, x: Value) -> object:
    return c.builder.shape(Value(10**6))  # a value that is not there


def test_an_error_inside_a_rule_is_a_defect_that_says_what_to_send(
    run: Run, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RULES, "tanh", broken)
    result = run("job", "create", f"{file}:planted", "--out", tmp_path / "job", "--json")
    assert result.exit_code == 1
    error = json.loads(result.stderr)["error"]
    assert error["code"] == "internal", error
    where = f"my_task.py:{line_of('torch.tanh')}"
    assert error["message"].startswith(
        f"a defect of Tiebreak, not of your script, stops the capture with the operator aten.tanh.default (at {where}):"
        " IndexError"
    )
    assert error["message"].endswith(
        "; please run it again as `tiebreak --debug ...` and send what it prints to Tiebreak's authors."
    )
