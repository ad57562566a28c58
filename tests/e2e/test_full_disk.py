"""A role whose disk somebody else has filled: what it pays for is still put on record, and no bond of it is lost."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tiebreak.contract.enums import JobStatus, Outcome
from tiebreak.devnet.embedded import embedded_node
from tiebreak.operation.monitor import RoleMonitor
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.notices import Notice, What
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.transactions.journal import Entry, Journal, Reserve
from tiebreak.transactions.keys import devnet_account
from tiebreak_demo.adversary.dishonest_queues import silenced
from tiebreak_demo.adversary.parties import lying_auditor, poisoning_trainer

from tests.e2e.market import OPEN, posted
from tests.e2e.world import NAMES, CountingSender, World

MIB = 1 << 20


class SmallDisk:
    """The disk of 1 MiB below a directory. `fill`: takes every free byte, as a stranger's content would."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def fill(self) -> None:
        with (self.directory / "filler").open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    assert error.errno == errno.ENOSPC

    def make_room(self) -> None:
        (self.directory / "filler").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(directory)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this process may not mount a disk of 1 MiB")
    try:
        yield SmallDisk(directory)
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(embedded_node(), tmp_path / "world")


def on(disk: Path, world: World, notify: Callable[[Notice], None] | None = None) -> RoleContext:
    """The context of an auditor whose directory, with its journal, is on a disk."""
    account = devnet_account(NAMES.index("auditor"))
    sender = world.senders["auditor"] = CountingSender(world.node, account, directory=disk)
    sender.open()
    context = replace(world.context("auditor"), sender=sender, contract=world.contract.by(sender), directory=disk)
    return context if notify is None else replace(context, notify=notify)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False], ids=["with a reserve", "without one"])
def test_on_a_full_disk_of_1_mib_a_wrong_claim_is_challenged_and_rejected(
    world: World, disk: SmallDisk, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kept:
        monkeypatch.setattr(Reserve, "fill", lambda self: None)
    world.post()
    trainer = poisoning_trainer(world.context("trainer"), world.job, poisoned_step=7)
    world.run(trainer)

    def fills(notice: Notice) -> None:
        world.notices.append(notice)
        if notice.what is What.STAKED:  # all that it has computed is on the disk, and the payment is next
            disk.fill()

    context = on(disk.directory, world, fills)
    auditor = AuditorRole(context, world.job)
    if not kept:
        assert not any(auditor.step().finished for _ in range(20))
        assert world.contract.job(world.job).game_count == 0 and world.said("No space left on device")
        return
    world.run(trainer, auditor, world.customer())
    assert (world.game().outcome, world.status) == (Outcome.CHALLENGER_WON, JobStatus.REJECTED)
    assert world.gains()["auditor"] == world.shares().winner
    assert 0 < context.sender.reserve.missing < MIB
    assert watched(context) > 0
    disk.make_room()
    auditor.step()
    assert context.sender.reserve.missing == 0 and (disk.directory / "reserve").stat().st_size == MIB // 4
    assert watched(context) == 0
    context.sender.close()


def watched(context: RoleContext) -> int:
    """The bytes of the reserve that the monitor finds missing."""
    monitor = RoleMonitor("auditor")
    monitor.attach(context)
    monitor.probe()
    return monitor.situation().reserve_missing


@pytest.mark.slow
def test_a_restarted_auditor_appeals_on_a_disk_that_was_filled_meanwhile(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Needs no mount: records find no room until some of the reserve was given up for each."""
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
