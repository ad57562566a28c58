"""Strangers' content, and claims about runs that cannot be: what a role does when nothing is as it should be."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from roundlog.job import Job
from roundlog.storage import load_tensors, save_tensors
from tiebreak.chain.errors import ChainUnavailable
from tiebreak.chain.game import VerificationGame
from tiebreak.chain.records import Job as PostedJob
from tiebreak.chain.records import JobStatus, Outcome, Phase, Side
from tiebreak.demo.dishonest import LyingAuditor, PoisoningTrainer, silenced
from tiebreak.game import Leaves, Place
from tiebreak.roles.auditor import AuditorRole
from tiebreak.roles.contents import Refused, fetch_job
from tiebreak.roles.customer import CustomerRole
from tiebreak.roles.evidence import NO_STATE, Evidence
from tiebreak.roles.notices import What
from tiebreak.roles.policy import Policy
from tiebreak.roles.referee import RefereeRole
from tiebreak.roles.station import Limits
from tiebreak.roles.trainer import TrainerRole
from world import TERMS, World, conv_task, linear_task


@pytest.fixture
def world(quick_world: World) -> World:
    return quick_world


# ------------------------------------------------------------------------------------------------------- hostile jobs


def post_with_cid(world: World, cid: str, **spec: object) -> int:
    job = Job.from_task(linear_task())
    posted = replace(job.spec, **spec)  # type: ignore[arg-type]
    contract = world.contract.by(world.senders["customer"])
    world.job, _ = contract.post_job(posted, world.senders["referee"].address, TERMS, cid)
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
    post_with_cid(world, "whatever", rounding_policy=1)
    assert "rounding_policy" in refusal(world)


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
        f"the referee {world.senders['referee'].address} can decide over the bond of {TERMS.challenger_bond} wei"
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


class InventedEvidence(Evidence):
    """State roots from nowhere."""

    def __init__(self, job: Job, steps: Sequence[bytes]) -> None:
        k = job.spec.interval
        self.steps = [list(steps[i : i + k]) for i in range(0, len(steps), k)]
        super().__init__(job, Path("nowhere"), [interval[-1] for interval in self.steps])

    def leaves(self, place: Place) -> Leaves:
        return Leaves(self.steps[place[0]]) if place else self.claim

    def state_before(self, step: int) -> list[torch.Tensor]:
        return [torch.zeros(1)]


def claim_by_hand(world: World, evidence: Evidence) -> TrainerRole:
    trainer = TrainerRole(world.station("trainer"), world.job)
    trainer._evidence = evidence
    root, final, proof = trainer.claim(evidence)
    trainer.station.contract.commit(
        world.job,
        checkpoint_root=root,
        final_state_root=final,
        proof=proof,
        log_cid="none",
        model_cid="none",
        bond=TERMS.trainer_bond,
    )
    return trainer


def true_roots(world: World, job: Job) -> list[bytes]:
    """The right state root after every step, by an auditor's own evidence; NO_STATE once the run has ended."""
    auditor = AuditorRole(world.station("second"), world.job)
    evidence = auditor._execute(job, world.root / "truth", None)
    return [root for i in range(job.spec.intervals) for root in evidence.leaves((i,)).payloads]


def diverging_task():  # type: ignore[no-untyped-def]
    """Its weights overflow at step 7: half way, in the middle of an interval."""
    task = linear_task()
    return replace(task, schedule=lambda step: 1.0 if step < 7 else 3e39)


def test_a_claim_about_a_run_that_has_no_end_is_rejected_at_the_step_where_it_ends(world: World) -> None:
    world.post(diverging_task())
    job = Job.read(world.root / "files")
    roots = true_roots(world, job)
    end = roots.index(NO_STATE)
    assert 0 < end < 15 and end % 3 and set(roots[end:]) == {NO_STATE}

    honest = TrainerRole(world.station("second"), world.job).step()
    assert honest.finished and "cannot be trained" in honest.state
    invented = [root if root != NO_STATE else sha256(b"%d" % i).digest() for i, root in enumerate(roots)]
    trainer = claim_by_hand(world, InventedEvidence(job, invented))
    world.run(trainer, AuditorRole(world.station("auditor"), world.job), world.referee())
    assert tuple(level.index for level in world.game().levels) == divmod(end, 3)
    assert world.game().outcome is Outcome.CHALLENGER_WON


def test_two_liars_who_agree_on_a_wrong_state_both_lose(world: World) -> None:
    world.post()
    job = Job.read(world.root / "files")
    roots = true_roots(world, job)
    wrong = [*roots[:4], *(sha256(b"both" + root).digest() for root in roots[4:])]
    other = [*wrong[:9], *(sha256(b"one" + root).digest() for root in wrong[9:])]
    trainer = claim_by_hand(world, InventedEvidence(job, wrong))

    class Accomplice(AuditorRole):
        def alter(self, evidence: Evidence) -> Evidence:
            return InventedEvidence(job, other)

    world.run(trainer, Accomplice(world.station("auditor"), world.job), world.referee())
    assert tuple(level.index for level in world.game().levels) == (3, 0)
    assert world.said("both sides are wrong before step 9")
    assert world.game().outcome is Outcome.BOTH_LOST


# ----------------------------------------------------------------------------------------------------- offered states


def to_the_referee(world: World) -> str:
    """A dispute about step 13 that waits for the referee; the CID of the state that was offered to it."""
    world.post()
    trainer = PoisoningTrainer(world.station("trainer"), world.job, poisoned_step=13)
    auditor = AuditorRole(world.station("auditor"), world.job)
    world.run(trainer, auditor)
    assert world.game().phase is Phase.REFEREE
    offers = {notice.text.split()[-1] for notice in world.said("offers the state before")}
    assert len(offers) == 1  # both sides offer the same bytes
    return offers.pop()


def test_a_referee_starts_from_an_offered_state_and_repeats_nothing(world: World) -> None:
    offer = to_the_referee(world)
    world.notices.clear()
    world.run(RefereeRole(world.station("referee"), offers=[offer]))
    assert world.said("starts from the offered state")
    assert not [notice for notice in world.notices if notice.what is What.STEP]
    assert world.game().outcome is Outcome.CHALLENGER_WON


def test_offers_that_are_not_the_agreed_state_are_refused_one_by_one(world: World) -> None:
    offer = to_the_referee(world)
    job = Job.read(world.root / "files")
    world.store.get_file(offer, world.root / "state", max_bytes=10**6)
    state = load_tensors(world.root / "state", job.program.states)
    save_tensors(world.root / "other", {name: tensor + 1 for name, tensor in state.items()})
    save_tensors(world.root / "nan", {name: tensor * torch.nan for name, tensor in state.items()})
    bad = [
        world.store.add_file(world.root / "other"),
        world.store.add_file(world.root / "nan"),
        world.store.add_bytes(b"rubbish"),
        world.store.add_bytes(bytes(10**6)),
        world.store.add_directory(world.root / "files"),
        "Qm" + "1" * 44,
    ]
    world.notices.clear()
    world.run(RefereeRole(world.station("referee"), offers=bad))
    assert len([notice for notice in world.notices if notice.what is What.WARNING]) == len(bad)
    assert world.said("has another root than")
    assert world.game().outcome is Outcome.CHALLENGER_WON


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
    assert [world.game(i).levels[0].height for i in (1, 2)] == [3, 3]


def test_a_late_auditor_helps_up_to_the_point_where_only_the_party_itself_may_move(world: World) -> None:
    world.post(terms=replace(TERMS, challenge_window=10, clock_allowance=5_000))
    trainer = PoisoningTrainer(world.station("trainer"), world.job, poisoned_step=7)
    silent = AuditorRole(silenced(world.station("second")), world.job)
    world.run(trainer, silent)
    late = AuditorRole(world.station("auditor"), world.job)
    world.pass_challenge_window()
    world.run(late, trainer)
    assert world.game().current.height == 3  # the first half of its time is the silent party's own
    world.pass_time(world.game().deadlines[Side.CHALLENGER] - 2_000)
    world.run(late, trainer)
    assert world.game().current.height == 1 or world.game().phase is Phase.OPENING
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
