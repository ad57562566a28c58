"""Strangers' content, and claims about runs that cannot be: what a role does when nothing is as it should be."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from roundlog.capture import Task
from roundlog.commitments import MerkleTree
from roundlog.dispute import MadeUp
from roundlog.dispute.trace import first_store
from roundlog.executor import Executor, RunningStep, StoppedError
from roundlog.job import Job, JobError, run_bytes
from roundlog.program import Program
from roundlog.storage import save_tensors
from tiebreak.chain.code import Code
from tiebreak.chain.errors import ChainUnavailable
from tiebreak.chain.game import VerificationGame
from tiebreak.chain.records import Job as PostedJob
from tiebreak.chain.records import JobStatus, Level, Outcome, Phase, Reason, Side
from tiebreak.demo.dishonest import LyingAuditor, PoisoningTrainer, TamperingAuditor, TamperingTrainer, silenced
from tiebreak.demo.tampering import CunningEvidence, Lie
from tiebreak.roles import answerable
from tiebreak.roles.auditor import AuditorRole
from tiebreak.roles.contents import Refused, fetch_job
from tiebreak.roles.customer import CustomerRole, post_job
from tiebreak.roles.evidence import Evidence
from tiebreak.roles.notices import What
from tiebreak.roles.policy import Policy
from tiebreak.roles.station import Limits
from tiebreak.roles.trainer import TrainerRole
from torch import nn
from world import TERMS, World, conv_task, linear_task


@pytest.fixture
def world(quick_world: World) -> World:
    return quick_world


# ------------------------------------------------------------------------------------------------------- hostile jobs


def post_with_cid(world: World, cid: str, **spec: object) -> int:
    job = Job.from_task(linear_task())
    posted = world.spec(replace(job.spec, **spec))  # type: ignore[arg-type]
    contract = world.contract.by(world.senders["customer"])
    world.job, _ = contract.post_job(posted, TERMS, cid)
    return world.job


def refusal(world: World, **limits: int) -> str:
    station = replace(world.station("trainer"), limits=Limits(**limits))
    progress = TrainerRole(station, world.job).step()
    assert progress.finished and world.status is JobStatus.OPEN
    return progress.state


def test_a_job_whose_files_are_another_one_s_is_refused(world: World) -> None:
    Job.from_task(conv_task()).write(world.root / "files")
    post_with_cid(world, world.store.add_directory(world.root / "files"))
    assert "another job than the posted one" in refusal(world)


def test_a_job_whose_files_are_not_a_job_is_refused(world: World) -> None:
    post_with_cid(world, world.store.add_bytes(b"not a directory"))
    assert "is not a directory" in refusal(world)
    post_with_cid(world, "not a cid")
    assert "is not a content identifier" in refusal(world)


def test_a_job_with_a_data_set_that_does_not_fit_its_root_is_refused(world: World) -> None:
    job = Job.from_task(linear_task())
    job.write(world.root / "files")
    save_tensors(world.root / "files" / "data.safetensors", {**job.dataset, "x": job.dataset["x"] + 1})
    post_with_cid(world, world.store.add_directory(world.root / "files"))
    assert "dataset" in refusal(world)


def test_a_spec_that_this_version_cannot_follow_is_refused(world: World) -> None:
    post_with_cid(world, "whatever", rounding_bits=24)
    assert "the spec's rounding_bits are 24, to which the contract does not round" in refusal(world)


def test_a_job_that_names_another_adjudicator_gets_no_bond(world: World) -> None:
    """Its code is the right one, but it asks other functions."""
    job = Job.from_task(linear_task())
    job.write(world.root / "files")
    cid = world.store.add_directory(world.root / "files")
    sender = world.senders["customer"]
    stranger = Code.load("Limits").deploy(sender).contract
    assert stranger is not None
    other = Code.load("Adjudicator").deploy(sender, argument=bytes(12) + bytes.fromhex(stranger[2:])).contract
    assert other is not None
    contract = world.contract.by(sender)
    world.job, _ = contract.post_job(replace(world.spec(job.spec), adjudicator=other), TERMS, cid)
    assert f"the posted adjudicator {other} is not this version's" in refusal(world)
    liar = world.contract.by(world.senders["second"])
    root = bytes([7]) * 32
    claimed = MerkleTree([root] * 5)
    claim = {"checkpoint_root": claimed.root, "final_state_root": root, "proof": claimed.proof(4)}
    liar.commit(world.job, **claim, log_cid=cid, model_cid=cid, bond=TERMS.trainer_bond)
    progress = AuditorRole(world.station("auditor"), world.job).step()
    assert progress.finished and "nobody knows what it would compute" in progress.state
    assert world.contract.job(world.job).game_count == 0
    with pytest.raises(JobError, match="is not this version's: deploy a contract"):
        game = VerificationGame(world.node, world.contract.address, sender)
        game.adjudicator = lambda: other  # type: ignore[method-assign]
        post_job(replace(world.station("customer"), contract=game), world.root / "files", TERMS, sender.address)


def test_a_job_of_which_a_proof_fits_no_transaction_gets_no_bond(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.post()
    monkeypatch.setattr(answerable, "MOST_PROOF_BYTES", 2_000)
    assert "more than the 2000 of a transaction" in refusal(world)
    with pytest.raises(JobError, match="more than the 2000 of a transaction"):
        world.post()


def test_jobs_beyond_the_limits_are_refused_before_anything_is_fetched_or_run(world: World) -> None:
    world.post()
    assert "15 steps, more than the 14 allowed" in refusal(world, steps=14)
    assert "bytes" in refusal(world, job_bytes=100)
    assert not (world.root / "trainer").exists() or not list((world.root / "trainer").rglob("*.safetensors"))
    assert "memory" in refusal(world, memory_bytes=1000)


def test_files_damaged_after_they_were_fetched_are_fetched_again(world: World) -> None:
    world.post()
    station, posted = world.station("trainer"), world.contract.job(world.job)
    room = station.room(world.job, posted)
    fetch_job(station, posted, room)
    (room / "job" / "program.json").write_text("{}")
    assert fetch_job(station, posted, room).spec == posted.spec.training


def test_a_job_reserved_for_somebody_else_is_left_alone(world: World) -> None:
    world.post(terms=replace(TERMS, trainer=world.senders["second"].address))
    progress = TrainerRole(world.station("trainer"), world.job).step()
    assert progress.finished and "reserved" in progress.state
    assert TrainerRole(world.station("trainer"), 99).step().finished
    assert AuditorRole(world.station("auditor"), 99).step().finished


@pytest.mark.parametrize(
    ("policy", "objection"),
    [
        (Policy(referees=frozenset()), "is not among the trusted ones"),
        (Policy(least_clock=TERMS.clock_allowance + 1), "less than the 5001 needed"),
        (Policy(most_bond=min(TERMS.trainer_bond, TERMS.challenger_bond) - 1), "is more than"),
    ],
    ids=["referee", "clock", "bond"],
)
def test_no_bond_is_put_on_a_trap(world: World, policy: Policy, objection: str) -> None:
    world.post()
    refused = TrainerRole(replace(world.station("trainer"), policy=policy), world.job).step()
    assert refused.finished and objection in refused.state
    world.run(PoisoningTrainer(world.station("trainer"), world.job, poisoned_step=7))
    auditor = AuditorRole(replace(world.station("auditor"), policy=policy), world.job)
    progress = auditor.step()
    assert progress.finished and "wrong" in progress.state and objection in progress.state
    assert world.contract.job(world.job).game_count == 0
    assert [notice.role for notice in world.notices if notice.what is What.STAKED] == ["trainer"]
    assert AuditorRole(world.station("auditor"), world.job).step().acted
    staked, sent = (notice for notice in world.notices[-2:])
    assert staked.what is What.STAKED and staked.text == (
        f"the referee {world.senders['referee'].address} can decide over the bond of {TERMS.challenger_bond} wei "
        "where the contract cannot"
    )
    assert sent.what is What.SENT and sent.text == "challenge the claim"


def test_terms_just_good_enough_are_taken(world: World) -> None:
    world.post()
    policy = Policy(
        referees=frozenset([world.senders["referee"].address]),
        least_clock=TERMS.clock_allowance,
        most_bond=TERMS.trainer_bond,
    )
    world.run(TrainerRole(replace(world.station("trainer"), policy=policy), world.job))
    assert world.status is JobStatus.CLAIMED


# ------------------------------------------------------------------------------------------------------- hostile logs


class BadLogTrainer(TrainerRole):
    """Publishes whatever `spoil` makes of a copy of the log."""

    @staticmethod
    def spoil(log: Path) -> None:
        raise NotImplementedError

    def log_to_publish(self, log_dir: Path) -> Path:
        copy = log_dir.with_name("spoiled")
        shutil.copytree(log_dir, copy)
        self.spoil(copy)
        return copy


def flip_a_byte(log: Path) -> None:
    path = sorted(log.iterdir())[2]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def remove_a_file(log: Path) -> None:
    sorted(log.iterdir())[1].unlink()


def fill_with_rubbish(log: Path) -> None:
    for path in log.iterdir():
        path.write_bytes(b"\xff" * 1000)


def make_it_a_directory(log: Path) -> None:
    path = sorted(log.iterdir())[0]
    path.unlink()
    path.mkdir()
    (path / "file").write_bytes(b"")


@pytest.mark.parametrize("spoil", [flip_a_byte, remove_a_file, fill_with_rubbish, make_it_a_directory])
def test_a_spoiled_log_costs_time_and_nothing_else(world: World, spoil) -> None:  # type: ignore[no-untyped-def]
    world.post()
    trainer = BadLogTrainer(world.station("trainer"), world.job)
    trainer.spoil = spoil  # type: ignore[method-assign]
    world.run(trainer, AuditorRole(world.station("auditor"), world.job))
    assert world.contract.job(world.job).attestations == 1
    assert world.said("without the log")


class NoLogContract(VerificationGame):
    """Commits with content identifiers that lead nowhere."""

    def commit(self, job, **claim):  # type: ignore[no-untyped-def, override]
        return super().commit(job, **{**claim, "log_cid": "Qm" + "1" * 44, "model_cid": "rubbish"})


def test_a_log_that_cannot_be_had_is_done_without_and_a_missing_model_is_reported(world: World) -> None:
    world.post()
    station = world.station("trainer")
    contract = NoLogContract(world.node, world.contract.address, station.sender)
    trainer = TrainerRole(replace(station, contract=contract), world.job)
    world.run(trainer, AuditorRole(world.station("auditor"), world.job))
    assert world.said("the audit goes without it")
    assert world.contract.job(world.job).attestations == 1
    world.pass_challenge_window()
    customer = world.customer()
    customer.step()
    progress = customer.step()
    assert progress.finished and "has not published its model" in progress.state
    assert not (world.root / "model.safetensors").exists()


# --------------------------------------------------------------------------------------------- runs that cannot be run


class Hiding(Executor):
    """Goes on where a run has no value, with ones."""

    def __init__(self, program: Program, bits: int) -> None:
        super().__init__(program, bits)
        self.running = _HidingStep

    def run(self, inputs, rounding, observe=None, pass_on=None):  # type: ignore[no-untyped-def]
        return super().run(inputs, rounding, observe or (lambda index, output: None), pass_on)


class _HidingStep(RunningStep):
    def compute(self, index: int) -> None:
        try:
            super().compute(index)
        except StoppedError as error:
            getattr(self._rounding, "entries", {}).pop(index, None)
            self.values[index] = torch.where(error.output.isfinite(), error.output, 1.0)
            if self.executor.program.nodes[index].op == "store":
                self.states.append(self.values[index])


class HidingTrainer(TrainerRole):
    def executor(self, job: Job) -> Executor:
        return Hiding(job.program, 32)

    def alter(self, evidence: Evidence) -> Evidence:
        return CunningEvidence(evidence, Side.TRAINER)


def diverging_task() -> Task:
    """Step 7 makes its weights so large that step 8 stops, at the end of an interval."""
    return replace(linear_task(), schedule=lambda step: 1.0 if step < 7 else 3e39)


def test_a_claim_about_a_run_that_has_no_end_is_rejected_at_the_number_where_it_ends(world: World) -> None:
    world.post(diverging_task())
    honest = TrainerRole(world.station("second"), world.job).step()
    assert honest.finished and "cannot be trained: step 8: operator" in honest.state
    trainer, auditor = (
        HidingTrainer(world.station("trainer"), world.job),
        AuditorRole(world.station("auditor"), world.job),
    )
    world.run(trainer, auditor)
    assert world.said("the run has no end: step 8: operator")
    assert [level.index for level in world.game().levels[:2]] == [2, 2]
    assert (world.game().outcome, world.game().reason) == (Outcome.CHALLENGER_WON, Reason.PROOF)
    stopped = int(honest.state.split("operator ")[1].split()[0])
    assert world.game().levels[Level.OPERATOR].index == stopped


def test_a_run_that_has_no_end_is_not_attested(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if what is made up were the very state that was claimed."""
    world.post()
    world.run(TrainerRole(world.station("trainer"), world.job))
    auditor = AuditorRole(world.station("auditor"), world.job)
    monkeypatch.setattr(MadeUp, "needed", True)
    progress = auditor.step()
    assert progress.finished and "is about a run that has no end" in progress.state
    assert world.contract.job(world.job).attestations == 0


def test_two_liars_who_agree_on_a_wrong_state_do_not_save_the_claim(world: World) -> None:
    world.post()
    first = first_store(Job.read(world.root / "files").program)
    lies = [Lie(step=4, operator=first, only_stored=True), Lie(step=9, operator=first, only_stored=True)]
    trainer = TamperingTrainer(world.station("trainer"), world.job, lies=lies[:1])
    accomplice = TamperingAuditor(world.station("second"), world.job, lies=lies)
    world.run(trainer, accomplice)
    assert [level.index for level in world.game(1).levels[:2]] == [3, 0]
    assert world.game(1).outcome is Outcome.TRAINER_WON
    auditor = AuditorRole(world.station("auditor"), world.job)
    world.run(trainer, auditor)
    assert [level.index for level in world.game(2).levels[:2]] == [1, 1]
    assert (world.game(2).outcome, world.game(2).reason) == (Outcome.CHALLENGER_WON, Reason.PROOF)
    assert world.status is JobStatus.REJECTED


def test_who_cannot_hold_a_whole_step_puts_no_bond_on_it(world: World) -> None:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
    rows = {"x": torch.randn(300, 4), "y": torch.randint(0, 3, (300,))}
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    world.post(replace(linear_task(3, 1), model=model, optimizer=sgd, dataset=rows, batch_size=256))
    job = Job.read(world.root / "files")
    world.run(PoisoningTrainer(world.station("trainer"), world.job, poisoned_step=1))
    small = Limits(memory_bytes=run_bytes(job.program, job.spec, 4), micro_batches=4)
    assert small.memory_bytes < run_bytes(job.program, job.spec)
    auditor = AuditorRole(replace(world.station("auditor"), limits=small), world.job)
    progress = auditor.step()
    assert progress.finished and "not challenged: a whole step of it takes up to" in progress.state
    assert world.contract.job(world.job).game_count == 0


# ------------------------------------------------------------------------------------------------ late, lost, reminded


def test_an_auditor_that_comes_too_late_moves_for_a_silent_one_that_is_right(world: World) -> None:
    world.post()
    trainer = PoisoningTrainer(world.station("trainer"), world.job, poisoned_step=7)
    silent = AuditorRole(silenced(world.station("second")), world.job)
    world.run(trainer, silent)
    world.pass_time(world.contract.job(world.job).claim.challenge_deadline - TERMS.clock_allowance // 4)
    late = AuditorRole(world.station("auditor"), world.job)
    other = LyingAuditor(silenced(world.station("deployer")), world.job, first_wrong_step=1)
    world.run(other)
    world.pass_challenge_window()
    assert world.contract.job(world.job).live_games == 2
    world.run(late)
    # The first game's clock is out, nothing can be done about it; the liar is nobody to help.
    assert [world.game(i).search.height for i in (1, 2)] == [3, 3]


def test_a_late_auditor_helps_up_to_the_point_where_only_the_party_itself_may_move(world: World) -> None:
    world.post(terms=replace(TERMS, challenge_window=10, clock_allowance=5_000))
    trainer = PoisoningTrainer(world.station("trainer"), world.job, poisoned_step=7)
    silent = AuditorRole(silenced(world.station("second")), world.job)
    world.run(trainer, silent)
    late = AuditorRole(world.station("auditor"), world.job)
    world.pass_challenge_window()
    world.run(late, trainer)
    assert world.game().search.height == 3  # the first half of its time is the silent party's own
    world.pass_time(world.game().deadlines[Side.CHALLENGER] - 2_000)
    world.run(late, trainer)
    assert world.game().search.height == 1 or world.game().phase is Phase.OPENING
    assert world.game().challenger == world.senders["second"].address


def test_a_fresh_process_remembers_its_games_without_executing_anything(world: World) -> None:
    world.post()
    trainer = PoisoningTrainer(world.station("trainer"), world.job, poisoned_step=7)
    auditor = AuditorRole(silenced(world.station("auditor")), world.job)
    world.run(trainer, auditor)
    world.notices.clear()
    reborn = AuditorRole(world.station("auditor"), world.job)
    assert reborn.attend().acted
    again = PoisoningTrainer(world.station("trainer"), world.job, poisoned_step=7)
    assert again.attend().acted
    assert not [notice for notice in world.notices if notice.what is What.STEP]


def test_a_trainer_that_lost_its_directory_trains_again_and_defends_itself(world: World) -> None:
    world.post()
    world.run(TrainerRole(world.station("trainer"), world.job))
    liar = LyingAuditor(world.station("auditor"), world.job, first_wrong_step=7)
    world.run(liar)
    shutil.rmtree(world.root / "trainer")
    trainer = TrainerRole(world.station("trainer"), world.job)
    assert not trainer.attend().acted  # that would take too long between two steps of other work
    world.run(trainer, liar, world.referee())
    assert world.game().outcome is Outcome.TRAINER_WON


def test_a_role_outlives_an_outage_of_the_chain(world: World) -> None:
    world.post()

    class FlakyContract(VerificationGame):
        failures = 3

        def job(self, job: int) -> PostedJob:
            if self.failures:
                self.failures -= 1
                raise ChainUnavailable("the node is away: start it.")
            return super().job(job)

    station = world.station("customer")
    contract = FlakyContract(world.node, world.contract.address, station.sender)
    customer = CustomerRole(replace(station, contract=contract), 99, model=world.root / "model")
    assert customer.run(poll=0.01).finished
    assert len(world.said("the node is away")) == 3


def test_a_role_that_is_stopped_in_the_middle_of_training_stops_there_and_resumes(world: World) -> None:
    world.post()
    trainer = TrainerRole(world.station("trainer"), world.job)
    steps: list[int] = []

    def stop_at_seven(notice) -> None:  # type: ignore[no-untyped-def]
        if notice.what is What.STEP:
            steps.append(notice.done)
            if steps == list(range(1, 8)):
                trainer.stop.set()

    trainer.station = replace(trainer.station, notify=stop_at_seven)
    assert trainer.run(poll=0.01).state == "interrupted"
    assert steps == list(range(1, 8))
    trainer.stop.clear()
    trainer.step()
    assert steps[7:] == list(range(7, 16))  # from the last checkpoint
    assert world.status is JobStatus.CLAIMED


def test_the_posted_spec_decides_and_not_the_one_in_the_files(world: World) -> None:
    world.post()
    station, posted = world.station("trainer"), world.contract.job(world.job)
    other = replace(posted, spec_hash=bytes(32))
    with pytest.raises(Refused, match="another job"):
        fetch_job(station, other, station.room(world.job, other))
