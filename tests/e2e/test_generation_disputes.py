"""Text as a job, from the model to the verdict: who writes another token than the likeliest one loses, at that one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from roundlog.capture import Task, generated_tokens
from roundlog.program import DType
from roundlog.training.job import Job
from roundlog.training.run import Run
from roundlog.training.trainer import Trainer
from tiebreak.contract.enums import Finding, JobStatus, Level, Outcome, Reason, Side
from tiebreak.contract.events import ElementProven
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak_demo.adversary.engines import execution_of, lying
from tiebreak_demo.adversary.tampering import Lie, tampered

from tests.e2e.world import World
from tests.engine.generation.small_llama import small_llama

transformers = pytest.importorskip("transformers")

VOCABULARY, STEP, OTHER = 23, 4, 7


def job_of_text() -> Job:
    torch.manual_seed(0)
    config = small_llama(VOCABULARY, initializer_range=0.3)
    model = transformers.LlamaForCausalLM(config)
    return Job.from_task(lambda: Task.from_causal_lm(model, [[1, 2, 3], [4]], new_tokens=6, interval=2))


@pytest.mark.slow
def test_a_provider_that_writes_another_token_loses_at_that_token(world: World, tmp_path: Path) -> None:
    """The second sequence's token behind its fifth one; all that follows, follows from it."""
    job = job_of_text()
    right = Trainer(job, tmp_path / "run").run()
    (operator,) = [q for q, node in enumerate(job.program.nodes) if node.op == "argmax"]
    assert job.program.nodes[operator].type.dtype is DType.I64
    last = Run(job, tmp_path / "run").newest(job.spec.intervals)[1]
    tokens = generated_tokens(dict(zip(job.program.state_names, last, strict=True)))
    assert tokens[1][STEP] != OTHER, "else it would be no lie"

    world.post_made(job)
    lie = Lie(step=STEP, operator=operator, element=1, claimed=OTHER)
    execution = execution_of(lambda job: tampered(job.program, job.spec.f32_format, [lie]))
    provider = TrainerRole(lying(world.context("trainer"), execution, Side.TRAINER), world.job)
    world.run(world.customer(), provider, AuditorRole(world.context("auditor"), world.job), world.referee())
    game = world.game()
    roots = game.levels[Level.CHECKPOINT].roots
    assert roots[Side.CHALLENGER] == right.checkpoint_root != roots[Side.TRAINER]
    assert tuple(level.index for level in game.levels[: Level.OPERATOR + 1]) == (*divmod(STEP, 2), operator)
    (proof,) = [event for event in world.contract.events(game=1) if isinstance(event, ElementProven)]
    assert (proof.element, proof.claimed, proof.finding, proof.bits) == (1, OTHER, Finding.VALUE, tokens[1][STEP])
    assert (game.outcome, game.reason) == (Outcome.CHALLENGER_WON, Reason.PROOF)
    assert world.status is JobStatus.REJECTED
