"""Disks of a role that fail while it runs: damaged files cost no game, and a full disk no bond."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from roundlog.data import files
from tiebreak.contract.enums import JobStatus, Outcome, Phase, Side
from tiebreak.devnet.embedded import embedded_node
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.notices import Notice, What
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.transactions.journal import Entry, Journal, Reserve
from tiebreak.transactions.keys import devnet_account
from tiebreak_demo.adversary.engines import Lie
from tiebreak_demo.adversary.parties import (
    lying_auditor,
    silenced,
    tampering_auditor,
    tampering_trainer,
)

from tests.e2e.market import OPEN, audit, posted
from tests.e2e.world import NAMES, CountingSender, Ticks, World

pytestmark = pytest.mark.slow
DATA, INITIAL = "data.safetensors", "initial.safetensors"
LIE = Lie(step=1, operator=5)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world whose data are left in their files, however small they are."""
    monkeypatch.setattr(files, "HELD_BYTES", 0)
    world = World(embedded_node(), tmp_path)
    world.post()
    return world


def patient(world: World, name: str) -> RoleContext:
    return replace(world.context(name), clock=Ticks())


def flip(path: Path, place: int = -150) -> None:
    """Change a byte of a file in place, as a disk does: whoever has it open sees it."""
    with path.open("r+b") as file:
        file.seek(place, 2)
        byte = file.read(1)[0]
        file.seek(place, 2)
        file.write(bytes([byte ^ 1]))


def file_of(world: World, name: str, file: str) -> Path:
    return world.context(name).room(world.job, world.contract.job(world.job)) / "job" / file


def play_until_a_game(world: World, *roles: JobRole) -> None:
    for _ in range(100):
        for role in roles:
            role.step()
        if world.contract.job(world.job).live_games:
            return
    raise AssertionError("nobody challenges")


def play_to_the_end(world: World, honest: str, *roles: JobRole) -> None:
    """Play until the honest party has won; the other one has no move at last, and loses by its clock."""
    mine = Side.TRAINER if honest == "trainer" else Side.CHALLENGER
    world.run(*roles)
    if world.game().phase is not Phase.OVER:
        assert not world.game().deadlines[mine], "the honest party is on move"
        world.pass_time(world.game().deadlines[mine.other])
        world.run(*roles)
    assert world.game().outcome is (Outcome.TRAINER_WON if honest == "trainer" else Outcome.CHALLENGER_WON)


def parties(world: World, honest: str) -> tuple[JobRole, JobRole]:
    """Trainer and auditor, of whom one lies."""
    trainer, auditor = patient(world, "trainer"), patient(world, "auditor")
    if honest == "trainer":
        return TrainerRole(trainer, world.job), tampering_auditor(auditor, world.job, lies=[LIE])
    return tampering_trainer(trainer, world.job, lies=[LIE]), AuditorRole(auditor, world.job)


@pytest.mark.parametrize(("honest", "file"), [("auditor", DATA), ("trainer", INITIAL)])
def test_a_file_that_is_damaged_during_a_game_costs_no_game(world: World, honest: str, file: str) -> None:
    roles = parties(world, honest)
    play_until_a_game(world, *roles)
    damaged = file_of(world, honest, file)
    whole = damaged.read_bytes()
    flip(damaged)
    play_to_the_end(world, honest, *roles)
    assert damaged.read_bytes() == whole
    assert len(world.said("are damaged on this disk, and what is wrong is fetched again")) == 1


@pytest.mark.parametrize("file", [DATA, INITIAL])
def test_an_audit_whose_files_are_damaged_meanwhile_reads_them_again(world: World, file: str) -> None:
    """The initial state is read once, at the beginning."""
    trainer = TrainerRole(patient(world, "trainer"), world.job)
    world.run(trainer)
    context = patient(world, "auditor")
    told: list[int] = []

    def notify(notice: Notice) -> None:
        world.notices.append(notice)
        if notice.what is What.STEP:
            told.append(notice.done)
            if told == [1, 2, 3, 4]:
                flip(file_of(world, "auditor", file))

    auditor = AuditorRole(replace(context, notify=notify), world.job)
    world.run(trainer, auditor)
    assert world.contract.job(world.job).attestations == 1
    assert bool(world.said("are damaged on this disk")) is (file == DATA)
    assert told.count(1) == 1, "it goes on from its last checkpoint"


def test_a_log_that_is_damaged_before_it_is_served_is_fetched_again(tmp_path: Path) -> None:
    world = World(embedded_node(), tmp_path)
    world.post(terms=OPEN)
    trainer = TrainerRole(patient(world, "trainer"), world.job)
    world.run(trainer)
    context = patient(world, "auditor")
    log = context.room(world.job, world.contract.job(world.job)) / "log"

    def notify(notice: Notice) -> None:
        world.notices.append(notice)
        if "audited to checkpoint root" in notice.text:
            (damaged := sorted(log.iterdir())[1]).write_bytes(damaged.read_bytes()[:-1])

    world.run(trainer, AuditorRole(replace(context, notify=notify), world.job))
    assert world.contract.job(world.job).attestations == 1
    assert len(world.said("what is wrong with it on this disk is fetched again")) == 1
    claimed = world.contract.job(world.job).claim.log_cid
    assert world.store.address_of_directory(log) == claimed
    assert audit(world, "auditor").log_cid == claimed


def on(disk: Path, world: World, notify: Callable[[Notice], None] | None = None) -> RoleContext:
    """The context of an auditor whose directory, with its journal, is on a disk."""
    account = devnet_account(NAMES.index("auditor"))
    sender = world.senders["auditor"] = CountingSender(world.node, account, directory=disk)
    sender.open()
    context = replace(world.context("auditor"), sender=sender, contract=world.contract.by(sender), directory=disk)
    return context if notify is None else replace(context, notify=notify)


def test_a_restarted_auditor_appeals_on_a_disk_that_was_filled_meanwhile(
    embedded_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Needs no mount: records find no room until some of the reserve was given up for each."""
    world = embedded_world
    given: list[int] = []
    put = Journal._put

    def full(self: Journal, entry: Entry) -> None:
        left = (tmp_path / "role" / "reserve").stat().st_size
        if given and left >= given[-1]:
            raise OSError(errno.ENOSPC, "No space left on device")
        given.append(left)
        put(self, entry)

    world.post(terms=OPEN)
    trainer = TrainerRole(silenced(world.context("trainer")), world.job)
    (tmp_path / "role").mkdir()
    context = on(tmp_path / "role", world)
    world.run(trainer, AuditorRole(context, world.job))
    puppet = lying_auditor(world.context("second"), world.job, first_wrong_step=4)
    world.run(trainer, puppet)
    world.pass_time(max(world.game(1).deadlines))
    world.run(puppet)
    assert world.status is JobStatus.APPEALABLE
    context.sender.close()
    given.append((tmp_path / "role" / "reserve").stat().st_size)
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "_put", full)
        patched.setattr(Reserve, "_fill", lambda self, path: None)
        again = on(tmp_path / "role", world)
        for _ in range(10):
            AuditorRole(again, world.job).step()
    assert posted(world).game_count == 2 and world.game(2).is_appeal
    assert len(given) >= 2 and again.sender.reserve.missing >= 16 << 10
    again.sender.close()
