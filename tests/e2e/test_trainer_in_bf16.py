"""A job of `transformers.Trainer(bf16=True)`, from the script to the verdict: who lies by one ulp of a BF16 activation
loses, whether it trains or challenges."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from roundlog.capture import Task
from roundlog.commitments import MerkleTree, state_root
from roundlog.program import DType
from roundlog.storage import load_tensors
from roundlog.training.job import Job
from roundlog.training.run import Run
from roundlog.training.trainer import Trainer, TrainingResult
from tiebreak.contract.enums import Finding, JobStatus, Level, Outcome, Phase, Reason, Side
from tiebreak.contract.events import ElementProven
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak_demo.adversary.frauds import Fraud, fraudulent_challenger, fraudulent_trainer
from tiebreak_demo.adversary.places import wrong_activation

from tests.e2e.world import TERMS, World
from tests.engine.generation.small_llama import small_llama

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

pytestmark = pytest.mark.slow

STEP, INTERVAL = 3, 2


@dataclass(frozen=True)
class Known:
    """The job, what an honest trainer makes of it, and a lie about STEP."""

    job: Job
    right: TrainingResult
    fraud: Fraud


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Known:
    room = tmp_path_factory.mktemp("trainer")
    torch.manual_seed(2)
    config = small_llama(24, 8, 12, max_position_embeddings=8, tie_word_embeddings=False)
    rows = [{"input_ids": tokens, "labels": tokens} for tokens in torch.randint(2, 24, (12, 5))]
    trainer = transformers.Trainer(
        model=transformers.LlamaForCausalLM(config),
        args=transformers.TrainingArguments(
            output_dir=str(room / "output"),
            use_cpu=True,
            bf16=True,
            max_steps=4,
            per_device_train_batch_size=4,
            learning_rate=1e-2,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=rows,
    )
    job = Job.from_task(lambda: Task.from_trainer(trainer, interval=INTERVAL))
    right = Trainer(job, room / "run").run()
    return Known(job, right, wrong_activation(Run(job, room / "run"), STEP))


def place(world: World) -> tuple[int, ...]:
    """Interval, step and operator that the game has found."""
    return tuple(level.index for level in world.game().levels[: Level.OPERATOR + 1])


def told(known: Known) -> tuple[int, ...]:
    node = known.job.program.nodes[known.fraud.operator]
    assert (node.op, node.type.dtype) == ("matmul", DType.BF16)
    assert abs(known.fraud.claimed - known.fraud.right) == 1, "neighbours in BF16"
    return (*divmod(STEP, INTERVAL), known.fraud.operator)


def test_a_trainer_that_lies_by_one_ulp_of_an_activation_loses_to_an_honest_auditor(world: World, known: Known) -> None:
    world.post_made(known.job)
    trainer = fraudulent_trainer(world.context("trainer"), world.job, known.fraud)
    auditor = AuditorRole(world.context("auditor"), world.job)
    world.run(world.customer(), trainer, auditor, world.referee())
    game, fraud = world.game(), known.fraud
    roots = game.levels[Level.CHECKPOINT].roots
    assert roots[Side.CHALLENGER] == known.right.checkpoint_root != roots[Side.TRAINER]
    assert place(world) == told(known)
    (proof,) = [event for event in world.contract.events(game=1) if isinstance(event, ElementProven)]
    assert (proof.finding, proof.element, proof.claimed) == (Finding.VALUE, fraud.element, fraud.claimed)
    assert proof.bits == fraud.right, "what the contract has computed"
    assert (game.outcome, game.reason) == (Outcome.CHALLENGER_WON, Reason.PROOF)
    assert world.status is JobStatus.REJECTED
    shares = world.shares()
    assert world.gains() == {
        "customer": shares.customer,
        "trainer": -TERMS.trainer_bond,
        "auditor": shares.winner,
    }
    assert world.contract_balance() == 0


def test_a_challenger_that_lies_by_one_ulp_of_an_activation_loses_to_an_honest_trainer(
    world: World, known: Known
) -> None:
    world.post_made(known.job)
    trainer, customer = TrainerRole(world.context("trainer"), world.job), world.customer()
    liar = fraudulent_challenger(world.context("auditor"), world.job, known.fraud)
    world.run(customer, trainer, liar, world.referee())
    assert place(world) == told(known)
    assert world.game().phase is Phase.PROVING and world.said("ElementIsRight"), "it cannot prove a right element wrong"
    world.pass_time(world.game().deadlines[Side.CHALLENGER])
    world.run(trainer)
    assert (world.game().outcome, world.game().reason) == (Outcome.TRAINER_WON, Reason.TIMEOUT)
    world.pass_challenge_window()
    world.run(trainer, customer)
    claim = world.contract.job(world.job).claim
    assert world.status is JobStatus.FINAL
    assert claim.checkpoint_root == known.right.checkpoint_root == MerkleTree(known.right.state_roots).root
    assert world.gains() == {
        "customer": -TERMS.reward + world.shares().customer,
        "trainer": TERMS.reward + world.shares().winner,
        "auditor": -TERMS.challenger_bond,
    }
    assert world.contract_balance() == 0
    model = load_tensors(world.root / "model.safetensors", known.job.program.states)
    assert state_root(model.values()) == claim.final_state_root == known.right.state_roots[-1]
