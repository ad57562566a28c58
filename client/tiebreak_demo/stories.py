"""The three stories. Each ends with explicit expectations, read from the chain and from the parties' own files."""

from __future__ import annotations

from pathlib import Path

import torch
from roundlog.commitments import MerkleTree, state_root
from roundlog.storage import load_tensors
from roundlog.training import Job
from tiebreak.contract.contract_calls import Shares
from tiebreak.contract.enums import JobStatus, Level, Outcome, Phase, Reason, Side
from tiebreak.contract.events import ElementProven
from tiebreak.contract.structs import GameView, Terms

from tiebreak_demo.adversary.tampering import Lie
from tiebreak_demo.scene import Party
from tiebreak_demo.stage import TERMS, Stage

REWARD, TRAINER_BOND, CHALLENGER_BOND = TERMS.reward, TERMS.trainer_bond, TERMS.challenger_bond


def honest(stage: Stage, job_dir: Path, terms: Terms = TERMS) -> None:
    """An honest trainer, an auditor on another machine: the claim is final, the trainer is paid."""
    scene = stage.scene
    stage.post(job_dir, terms)
    stage.start(scene.trainer, scene.command(scene.trainer, "trainer", "run", "--job", str(stage.job)))
    stage.start(scene.auditor, scene.command(scene.auditor, "auditor", "run", "--job", str(stage.job)))
    stage.until_ended(scene.auditor)
    _close_window(stage)
    stage.until_ended(scene.trainer)
    stage.collect()

    job = scene.contract.job(stage.job)
    trained, audited = (_roots(stage, *of) for of in ((scene.trainer, "run"), (scene.auditor, "alone")))
    stage.expect(
        "machine B has computed the claimed checkpoint root", job.claim.checkpoint_root, MerkleTree(audited).root
    )
    stage.expect(f"all {len(trained)} checkpoints are the same on both machines, bit for bit", trained, audited)
    stage.expect("the auditor has attested to the claim", 1, job.attestations)
    stage.expect("the claim is final", JobStatus.FINAL.name, job.status.name)
    _expect_model(stage, job_dir, job.claim.final_state_root)
    stage.settle({scene.customer: -REWARD, scene.trainer: REWARD})


def poisoned(stage: Stage, job_dir: Path, step: int, right_root: bytes) -> None:
    """A trainer who trains one batch on wrong labels: found at exactly that step, the claim is rejected."""
    _rejected(stage, job_dir, TERMS, "poison", step, right_root, "the poisoned one")
    _settle_rejected(stage)


def changed_weight(
    stage: Stage, job_dir: Path, lie: Lie, weight: torch.Tensor, right_root: bytes, terms: Terms = TERMS
) -> None:
    """A provider of a text whose model has one weight that is one ulp off: found at the operator that reads it, the
    claim is rejected. weight: the right tensor that it is of."""
    game = _rejected(stage, job_dir, terms, "weight", lie.step, right_root, "in which that weight is read")
    stage.expect("and the operator that reads it", lie.operator, game.levels[Level.OPERATOR].index)
    found = stage.game_of(stage.scene.auditor)
    assert found is not None, "the auditor has not challenged"
    (proof,) = [one for one in stage.scene.contract.events(game=found[0]) if isinstance(one, ElementProven)]
    pattern = {2: torch.uint16, 4: torch.uint32}[weight.dtype.itemsize]
    right = int(weight.reshape(-1)[lie.element].view(pattern))
    stage.expect(
        f"at element {lie.element} of {weight.numel():,} the contract has the model's bits, the provider is an ulp off",
        (lie.element, f"{right:#x}", f"{right ^ 1:#x}"),
        (proof.element, f"{proof.bits:#x}", f"{proof.claimed:#x}"),
    )
    _settle_rejected(stage)


def _rejected(
    stage: Stage, job_dir: Path, terms: Terms, kind: str, step: int, right_root: bytes, which: str
) -> GameView:
    """Plays a job whose trainer misbehaves in one step, to the end. The game that finds it."""
    scene = stage.scene
    stage.post(job_dir, terms)
    stage.act(scene.trainer, kind, step)
    # An audit needs no log; with one that is wrong from some step on, it only takes longer.
    words = ("auditor", "run", "--job", str(stage.job), "--no-log")
    stage.start(scene.auditor, scene.command(scene.auditor, *words))
    stage.until_ended(scene.auditor, scene.trainer)
    stage.collect()

    job = scene.contract.job(stage.job)
    stage.expect(
        "the trainer has claimed another root than the right one", True, job.claim.checkpoint_root != right_root
    )
    game = _game(stage, scene.auditor)
    stage.expect("the auditor has challenged with the right root", right_root, game.levels[0].roots[1])
    _expect_end(stage, game, Outcome.CHALLENGER_WON, Reason.PROOF)
    stage.expect(f"the game has found step {step}, {which}", step, _found(game, job.spec.training.interval))
    stage.expect("the claim is rejected", JobStatus.REJECTED.name, job.status.name)
    return game


def _settle_rejected(stage: Stage) -> None:
    """Reads the end of a rejected claim from the chain."""
    scene, game = stage.scene, _game(stage, stage.scene.auditor)
    lost = Shares.of(TRAINER_BOND, game.spent[Side.CHALLENGER])
    stage.settle({scene.trainer: -TRAINER_BOND, scene.auditor: lost.winners, scene.customer: lost.quarter})


def false_alarms(stage: Stage, job_dir: Path, step: int, right_root: bytes) -> None:
    """Two auditors against an honest trainer, one who lies and one who falls silent: both lose their bonds."""
    scene = stage.scene
    stage.post(job_dir)
    stage.start(scene.trainer, scene.command(scene.trainer, "trainer", "run", "--job", str(stage.job)))
    stage.act(scene.liar, "lie", step)
    stage.act(scene.silent, "vanish", step)
    stage.until(lambda job: job.game_count == 2 and job.live_games == 1 and _is_over(stage, scene.liar))
    silent = _game(stage, scene.silent)
    # The trainer moves as fast as it can, so the clock that runs now is the silent one's.
    stage.until(lambda _: _game(stage, scene.silent).deadlines[1] > 0)
    silent = _game(stage, scene.silent)
    stage.screen.meanwhile("an hour passes")
    scene.pass_time(silent.deadlines[1])
    stage.until(lambda job: job.live_games == 0)
    _close_window(stage)
    stage.until_ended(scene.trainer, scene.liar, scene.silent)
    stage.collect()

    job = scene.contract.job(stage.job)
    stage.expect("the trainer has claimed the right root", right_root, job.claim.checkpoint_root)
    lie = _game(stage, scene.liar)
    _expect_end(stage, lie, Outcome.TRAINER_WON, Reason.PROOF)
    stage.expect(f"the game has found step {step}, where the lie begins", step, _found(lie, job.spec.training.interval))
    _expect_end(stage, _game(stage, scene.silent), Outcome.TRAINER_WON, Reason.TIMEOUT)
    stage.expect("the claim is final", JobStatus.FINAL.name, job.status.name)
    _expect_model(stage, job_dir, job.claim.final_state_root)
    lost = [Shares.of(CHALLENGER_BOND, _game(stage, who).spent[Side.TRAINER]) for who in (scene.liar, scene.silent)]
    stage.settle(
        {
            scene.customer: -REWARD + sum(one.quarter for one in lost),
            scene.trainer: REWARD + sum(one.winners for one in lost),
            scene.liar: -CHALLENGER_BOND,
            scene.silent: -CHALLENGER_BOND,
        }
    )


def _close_window(stage: Stage) -> None:
    stage.screen.meanwhile("a week passes, and the window for challenges closes")
    stage.scene.pass_time(stage.scene.contract.job(stage.job).claim.challenge_deadline)


def _roots(stage: Stage, party: Party, kind: str) -> list[bytes]:
    """The state roots that a party has computed."""
    content = (stage.run_of(party, kind) / "roots").read_bytes()
    return [content[i : i + 32] for i in range(0, len(content), 32)]


def _game(stage: Stage, challenger: Party) -> GameView:
    found = stage.game_of(challenger)
    assert found is not None, f"the {challenger.name} has not challenged"
    return found[1]


def _is_over(stage: Stage, challenger: Party) -> bool:
    found = stage.game_of(challenger)
    return found is not None and found[1].phase is Phase.OVER


def _found(game: GameView, interval: int) -> int:
    """The step at which a game has arrived."""
    checkpoint, step = (level.index for level in game.levels[:2])
    return checkpoint * interval + step


def _expect_end(stage: Stage, game: GameView, outcome: Outcome, reason: Reason) -> None:
    winner = {Outcome.TRAINER_WON: "trainer", Outcome.CHALLENGER_WON: "auditor"}[outcome]
    how = {
        Reason.PROOF: "by what the contract has computed",
        Reason.TIMEOUT: "because the other side's clock ran out",
    }[reason]
    stage.expect(
        f"the {winner} has won the game {how}",
        (outcome.name, reason.name),
        (game.outcome.name, game.reason.name),
    )


def _expect_model(stage: Stage, job_dir: Path, root: bytes) -> None:
    model = stage.scene.directory / f"model-{stage.job}.safetensors"
    states = load_tensors(model, Job.read(job_dir).program.states)
    stage.expect("the customer has the model that was claimed", root, state_root(states.values()))
