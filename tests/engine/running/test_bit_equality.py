"""One root on every machine: every task, several hardware profiles, fresh processes, with the log and without.

A sample of the matrix runs with the other tests; all of it, 50 steps on all machines, by `make test-matrix`. Both are
`scripts/matrix.py`, on jobs of the examples and on those that the engine's tests share."""

import functools
import platform
from collections.abc import Callable

import matrix
import pytest
from machines.process import Outcome
from machines.profiles import MACHINES
from machines.tasks import SMALL, SMALL_IN_BF16, TEXTS
from roundlog.training.job import Job

from tests.engine.tasks import TASKS

SAMPLE = ("native", "AVX2, one thread", "compatible", "CUDA")
SAMPLE_TASKS = {"resnet50": 1, "gpt_bf16": 2, "llama_bf16": 1}

WHOLE = {"fp32": SMALL, "bf16": SMALL_IN_BF16, "texts": TEXTS}


def here(machines) -> list[str]:
    return [name for name in machines if MACHINES[name].missing() is None]


def on_all(machines):
    """A parameter for each machine, with the reason where there is none."""
    reasons = {name: MACHINES[name].missing() for name in machines}
    return [
        pytest.param(name, marks=pytest.mark.skipif(reason is not None, reason=str(reason)))
        for name, reason in reasons.items()
    ]


def has_one_root(result: matrix.Result, name: str, machine: str) -> None:
    right = result.of_task(name)[0].trained
    found = result.outcomes[machine][name]
    assert (found.trained, found.audited, found.alone) == (right, right, right)
    assert (found.findings, found.unreadable) == (0, 0)


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> matrix.Result:
    room = tmp_path_factory.mktemp("sample")
    jobs = {}
    for name, task in TASKS.items():
        Job.from_task(task).write(room / "jobs" / name)
        jobs[name] = room / "jobs" / name
    for name, steps in SAMPLE_TASKS.items():
        Job.from_task(functools.partial((SMALL | SMALL_IN_BF16)[name], steps)).write(room / "jobs" / f"{name} example")
        jobs[f"{name} example"] = room / "jobs" / f"{name} example"
    return matrix.run(jobs, here(SAMPLE), room, parts=2)


@pytest.mark.slow
def test_the_machines_of_the_sample_really_are_different(sample: matrix.Result) -> None:
    """Else this file would prove nothing: plain FP64 kernels must differ between at least two of them."""
    if len(set(sample.kernels.values())) == 1:
        # There the profiles' variables are known to choose other kernels.
        assert platform.machine() != "x86_64", sample.kernels
        pytest.skip("on this machine all hardware profiles give the same FP64 bits: nothing to compare")


@pytest.mark.slow
@pytest.mark.parametrize("machine", on_all(SAMPLE))
@pytest.mark.parametrize("name", [*TASKS, *(f"{name} example" for name in SAMPLE_TASKS)])
def test_a_machine_trains_and_audits_to_the_same_root(name: str, machine: str, sample: matrix.Result) -> None:
    has_one_root(sample, name, machine)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], matrix.Result]:
    @functools.cache
    def result(kind: str) -> matrix.Result:
        room = tmp_path_factory.mktemp(kind)
        jobs, steps = matrix.make_jobs(WHOLE[kind], room / "jobs", steps=None)
        return matrix.run(jobs, here(MACHINES), room, steps=steps, parts=2 if kind == "bf16" else 1)

    return result


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.matrix
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("machine", on_all(MACHINES))
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, tasks in WHOLE.items() for name in tasks])
def test_fifty_steps_or_a_text_end_in_the_same_root_on_every_machine(
    kind: str, name: str, machine: str, whole: Callable[[str], matrix.Result]
) -> None:
    has_one_root(whole(kind), name, machine)


def test_a_difference_in_one_root_or_one_finding_is_told() -> None:
    same = Outcome("aa", "aa", "aa", 0, 0, "p", "q", 1.0)
    others = [
        Outcome("bb", "aa", "aa", 0, 0, "p", "q", 1.0),
        Outcome("aa", "bb", "aa", 0, 0, "p", "q", 1.0),
        Outcome("aa", "aa", "bb", 0, 0, "p", "q", 1.0),
        Outcome("aa", "aa", "aa", 1, 0, "p", "q", 1.0),
        Outcome("aa", "aa", "aa", 0, 1, "p", "q", 1.0),
    ]
    assert matrix.Result({}, {"one": {"task": same}, "two": {"task": same}}).wrong() == []
    for other in others:
        wrong = matrix.Result({}, {"one": {"task": same}, "two": {"task": other}}).wrong()
        assert len(wrong) == 1 and wrong[0].startswith("task on two: ")
