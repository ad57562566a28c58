"""Every script of the corpus does what its decorator says: it is refused in a sentence, or it is captured, trains to
the losses of plain PyTorch, and comes to the same root on other hardware."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import make_script_docs
import pytest
import torch
from roundlog import Job
from roundlog.capture import CaptureError
from roundlog.training.kernel_sameness import has_short_numbers

from tests.engine.running.processes import PROFILES
from tests.scripts.script_corpus import Script, corpus
from tests.scripts.script_roots import roots_of
from tests.scripts.script_training import captured_job, losses_by_program, losses_by_pytorch, plain_kernels

SCRIPTS = corpus()

SAMPLE = ("flip_by_random", "packed_gru", "vq_vae_resets", "custom_function", "whole_loop", "autocast_left_on")
"""Scripts of several kinds that take a second each."""

OTHERS = tuple(name for name in SCRIPTS if name not in SAMPLE)

RELATIVE = 1e-6
"""Largest difference of a loss from that of PyTorch, which is about sixteen ulps of FP32; a loss below 0.1 is what is
left of logits of size one and more, and has the rounding errors of these."""

OF_BF16 = 2.0**-8
"""The same, of a script whose activations are rounded to BF16. Its kernels are compared one by one."""


@functools.cache
def job_of(name: str) -> Job:
    """The job of a script, after three steps of it beside plain PyTorch."""
    script = SCRIPTS[name]
    job, captured = captured_job(functools.partial(_task_of, script))
    ours, drawn = losses_by_program(job, captured, 3)
    task = script.task()
    with plain_kernels():
        theirs = losses_by_pytorch(task, drawn)
    relative = OF_BF16 if has_short_numbers(job.program) else RELATIVE
    assert ours == pytest.approx(theirs, rel=relative, abs=relative / 10)
    return job


def _task_of(script: Script):
    try:
        return script.task()
    except ModuleNotFoundError as missing:
        pytest.skip(f"needs {missing.name}")


def _does_what_it_says(name: str) -> None:
    outcome = SCRIPTS[name].outcome
    if not outcome.sentence:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            (job_of.__wrapped__ if outcome.warning else job_of)(name)  # one that was made before warns no more
        found = [str(one.message) for one in said if "trained parameters changes" in str(one.message)]
        assert (outcome.warning in found[0]) if found else not outcome.warning
        return
    with pytest.raises(CaptureError) as caught:
        Job.from_task(SCRIPTS[name].task)
    assert outcome.sentence in str(caught.value) and "\n" not in str(caught.value)


@pytest.fixture(autouse=True)
def _no_autocast() -> Iterator[None]:
    """Switches off what a script has left on."""
    yield
    torch.set_autocast_enabled("cpu", False)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_script_of_the_sample_does_what_its_decorator_says(name: str) -> None:
    _does_what_it_says(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_a_script_does_what_its_decorator_says(name: str) -> None:
    _does_what_it_says(name)


@pytest.mark.long
@pytest.mark.timeout(1800)  # it captures all of them where it runs alone
def test_all_scripts_have_one_root_on_an_old_processor(tmp_path: Path) -> None:
    for name in SCRIPTS:
        if not SCRIPTS[name].outcome.sentence and (name != "einops_heads" or importlib.util.find_spec("einops")):
            job_of(name).write(tmp_path / name)
    command = [sys.executable, str(Path(__file__).with_name("script_roots.py")), str(tmp_path)]
    old = subprocess.run(command, env={**os.environ, **PROFILES["old"]}, check=True, stdout=subprocess.PIPE, text=True)
    roots = roots_of(tmp_path)
    assert roots and json.loads(old.stdout) == roots


def test_the_page_of_scripts_is_fresh() -> None:
    assert make_script_docs.PAGE.read_text() == make_script_docs.page(), "run python scripts/make_script_docs.py"


def test_every_rewrite_is_a_script_that_is_captured() -> None:
    for script in SCRIPTS.values():
        outcome = script.outcome
        if outcome.sentence:
            assert bool(outcome.rewrite) != bool(outcome.advice), script.title
        if outcome.rewrite:
            assert not SCRIPTS[outcome.rewrite].outcome.sentence, script.title
