"""Processes that die at the worst instants, by SIGKILL, and carry on as if nothing had happened."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Timer
from typing import NoReturn

import pytest
from tiebreak.contract.enums import JobStatus, Outcome, Phase, Reason, Side
from tiebreak.devnet.launcher import start_devnet
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.notices import Notice, What
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.rpc.node import ChainNode, connect
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender
from tiebreak_demo.adversary.parties import poisoning_trainer

from tests.e2e.world import NAMES, World

FORK = multiprocessing.get_context("fork")


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def at_step(number: int) -> Callable[[RoleContext], RoleContext]:
    """Die after a training step."""

    def notify(notice: Notice) -> None:
        if notice.what is What.STEP and notice.done == number:
            die()

    return lambda context: replace(context, notify=notify)


def at_notice(text: str) -> Callable[[RoleContext], RoleContext]:
    """Die when the role says something."""

    def notify(notice: Notice) -> None:
        if text in notice.text:
            die()

    return lambda context: replace(context, notify=notify)


def at_sending(number: int) -> Callable[[RoleContext], RoleContext]:
    """Die after the node has got the `number`-th transaction (from 1), before anybody hears of it."""

    class DyingNode(ChainNode):
        left = number

        def send_raw(self, signed: bytes) -> bytes:
            result = super().send_raw(signed)
            self.left -= 1
            if not self.left:
                die()
            return result

    def rewire(context: RoleContext) -> RoleContext:
        context.sender.node = DyingNode(context.contract.node._transport)
        return context

    return rewire


def lives_until(
    make: Callable[[RoleContext], JobRole], context: RoleContext, doom: Callable[[RoleContext], RoleContext]
) -> None:
    """Run a role in a process of its own until that kills itself."""

    def live() -> None:
        role = make(doom(context))
        while not role.step().finished:
            pass

    process = FORK.Process(target=live)
    process.start()
    process.join(60)
    ended = process.exitcode
    process.kill()  # one that has not ended by itself must not go on beside the tests that follow
    assert ended == -signal.SIGKILL


def dies_at_every_move(
    world: World, make: Callable[[RoleContext], JobRole], context: RoleContext, side: Side, other: JobRole
) -> None:
    """Let a party die at each of its moves that are left in the game, and the other one move in between."""
    while world.game().deadlines[side]:
        lives_until(make, context, at_sending(1))
        world.run(other)
    assert world.game().phase is Phase.OVER


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with start_devnet() as devnet:
        yield World(connect(devnet.url), tmp_path)


@pytest.mark.slow
def test_a_trainer_killed_at_any_instant_commits_once_and_defends_itself(world: World) -> None:
    world.post()

    def make(context: RoleContext) -> poisoning_trainer:
        return poisoning_trainer(context, world.job, poisoned_step=8)

    context = world.context("trainer")
    for doom in (at_step(1), at_step(7), at_step(15), at_notice("published the log"), at_sending(1)):
        lives_until(make, context, doom)
    assert world.status is JobStatus.CLAIMED

    auditor = AuditorRole(world.context("auditor"), world.job)
    world.run(auditor)
    lives_until(make, context, at_sending(1))  # its first bisection
    world.run(auditor)
    lives_until(make, context, at_notice("open leaf"))
    world.run(auditor)
    dies_at_every_move(world, make, context, Side.TRAINER, auditor)
    world.run(make(context), auditor, world.customer())
    assert (world.game().outcome, world.game().reason) == (Outcome.CHALLENGER_WON, Reason.PROOF)
    assert [level.index for level in world.game().levels[:2]] == [2, 2]
    assert world.contract_balance() == 0


def test_the_root_of_a_killed_trainer_is_that_of_one_who_was_not(world: World) -> None:
    world.post()
    for doom in (at_step(4), at_step(11)):
        lives_until(lambda context: TrainerRole(context, world.job), world.context("trainer"), doom)
    auditor = AuditorRole(world.context("auditor"), world.job)
    world.run(TrainerRole(world.context("trainer"), world.job), auditor)
    assert world.contract.job(world.job).attestations == 1


@pytest.mark.slow
def test_a_challenge_that_no_block_has_taken_yet_is_not_sent_twice(world: World) -> None:
    """The process died between sending and hearing of it, and its transaction still waits when the next one starts."""
    world.post()
    world.run(poisoning_trainer(world.context("trainer"), world.job, poisoned_step=8))
    transport = world.node._transport
    if "anvil" not in str(transport.request("web3_clientVersion", [])):
        pytest.skip("only anvil holds transactions back")

    def context() -> RoleContext:
        """The context of a new process, which finds the journal of the one before it."""
        found = world.context("auditor")
        sender = Sender(world.node, devnet_account(NAMES.index("auditor")), directory=found.directory)
        return replace(found, sender=sender, contract=world.contract.by(sender))

    lives_until(lambda found: AuditorRole(found, world.job), context(), at_notice("not the claimed"))
    transport.request("evm_setAutomine", [False])
    lives_until(lambda found: AuditorRole(found, world.job), context(), at_sending(1))
    assert world.contract.job(world.job).game_count == 0
    timer = Timer(1.5, lambda: (transport.request("evm_mine", []), transport.request("evm_setAutomine", [True])))
    timer.start()
    auditor = AuditorRole(context(), world.job)
    while not world.contract.job(world.job).game_count:
        auditor.step()
    for _ in range(3):
        auditor.step()
    timer.join()
    assert world.contract.job(world.job).game_count == 1
