"""Scripts of the corpus by the capture of fresh tasks: those that it refuses, by a sentence, and all others, whose
steps are those of plain PyTorch."""

from __future__ import annotations

import pytest
from roundlog.capture import CaptureError
from roundlog.fresh_capture import FreshTasks, captured_task
from roundlog.fresh_capture.task_trace import without_checkpoints
from roundlog.training.sameness import confirm_same

from tests.scripts.script_corpus import corpus

SCRIPTS = corpus()

REFUSED = {
    "cutmix_by_slices": "takes a number out of a tensor",
    "curriculum_by_epoch": "a step changes loss.step, from 2 to 3",
    "dqn_every_two": "a step changes loss.step, from 2 to 3",
    "dropout_of_rows": "decide by torch.where",
    "early_stopping": "decide by torch.where",
    "epsilon_greedy": "a step changes loss.step, from 2 to 3",
    "flip_by_if": "decide by torch.where",
    "flip_by_random": "decide by torch.where",
    "hessians": "nested too deeply",
    "kl_annealing": "a step changes model.step, from 2 to 3",
    "mean_teacher": "a step changes loss.step, from 2 to 3",
    "running_loss": "a step changes loss.count, from 2 to 3",
    "statistics_none": "a step reads model.mean, where there is no tensor before the first step",
    "stochastic_depth_by_if": "decide by torch.where",
    "teacher_forcing_by_random": "decide by torch.where",
}
"""Scripts that are captured today, and the sentence of the refusal."""

SAMPLE = ("fields", "sam", "lion", "ema", "flip_by_if", "kl_annealing", "running_loss")


def _does_what_is_said(name: str) -> None:
    def outcome() -> None:
        try:
            captured, task = captured_task(FreshTasks(SCRIPTS[name].function))
        except ModuleNotFoundError as missing:
            pytest.skip(f"needs {missing.name}")
        with without_checkpoints():
            confirm_same(task, captured)

    if name not in REFUSED and not SCRIPTS[name].outcome.sentence:
        outcome()
        return
    with pytest.raises(CaptureError) as caught:
        outcome()
    assert REFUSED.get(name, "") in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_script_of_the_sample_is_captured_or_refused(name: str) -> None:
    _does_what_is_said(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in SAMPLE])
def test_a_script_is_captured_or_refused(name: str) -> None:
    _does_what_is_said(name)
