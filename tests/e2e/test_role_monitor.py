"""A monitor beside a role that plays a whole game: what it calls a person for, and what it counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tiebreak.contract.enums import Outcome, Side
from tiebreak.operation.alarms import OUTAGE_SECONDS, Cause
from tiebreak.operation.messenger import Messenger
from tiebreak.operation.metrics import Metrics
from tiebreak.operation.monitor import RoleMonitor, RotatingLog
from tiebreak.roles.job_role import Role
from tiebreak.roles.notices import Look, Notice, Progress, What
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.rpc.chain_errors import ChainUnavailable
from tiebreak.rpc.node import ChainNode
from tiebreak.store.store_errors import StoreUnavailable
from tiebreak_demo.adversary.parties import lying_auditor

from tests.e2e.world import TERMS, World


class Kept(Messenger):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__([])
        self.sent: list[Mapping[str, object]] = []

    def send(self, message: Mapping[str, object]) -> None:
        self.sent.append(message)


class Watched:
    """A role's context with a monitor, whose clock only moves when told."""

    def __init__(self, world: World, name: str) -> None:
        self.seconds = 0.0
        self.told: list[Notice] = []
        self.messenger = Kept()
        self.metrics = Metrics(name)
        self.log = world.root / f"{name}.log"
        self.monitor = RoleMonitor(
            name,
            self.told.append,
            messenger=self.messenger,
            log=RotatingLog(self.log),
            metrics=self.metrics,
            clock=lambda: self.seconds,
        )
        self.context = replace(world.context(name), notify=self.monitor.notice, on_look=self.monitor.look)
        self.monitor.attach(self.context)
        self.monitor.probe()

    def step(self, role: Role) -> Progress:
        """One look of the role, as `Role.run` would have it watched, and one of the monitor."""
        progress = role.step()
        self.context.on_look(Look(progress=progress))
        self.pass_by(1.0)
        return progress

    def pass_by(self, seconds: float) -> None:
        self.seconds += seconds
        self.monitor.tick()

    @property
    def causes(self) -> list[tuple[object, object, object]]:
        return [(one["cause"], one["resolved"], one["game"]) for one in self.messenger.sent]

    def metric(self, name: str) -> float:
        families = text_string_to_metric_families(self.metrics.text().decode())
        return next(one.value for family in families for one in family.samples if one.name == f"tiebreak_{name}")


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_a_person_is_called_once_when_half_a_clock_is_gone(quick_node: ChainNode, tmp_path: Path) -> None:
    world = World(quick_node, tmp_path)
    world.post()
    watched = Watched(world, "trainer")
    trainer = TrainerRole(watched.context, world.job)
    auditor = lying_auditor(world.context("auditor"), world.job, first_wrong_step=4)
    while not (world.contract.game_count() and world.game().deadlines[Side.TRAINER]):
        watched.step(trainer)
        auditor.step()
    watched.step(trainer)
    assert watched.metric("games_live") == 1 and watched.metric("stake_ether") == TERMS.trainer_bond / 10**18
    assert watched.causes == []
    # The trainer looks on, and does not move: its machine is busy, say.
    while watched.context.queue.is_busy or not world.game().deadlines[Side.TRAINER]:
        watched.context.queue.look()  # a move of its own may still be on its way
        auditor.step()
    world.pass_time(world.game().deadlines[Side.TRAINER] - TERMS.clock_allowance // 2 + 10)
    for _ in range(3):
        watched.context.queue.look()
        watched.context.on_look(Look(progress=Progress(state="is busy")))
        watched.pass_by(1.0)
    assert watched.causes == [(Cause.CLOCK_HALF_GONE, False, 1)]
    assert watched.metric("least_clock_ratio") < 0.5
    for _ in range(200):
        progress = watched.step(trainer)
        if not (auditor.step().acted or progress.acted or progress.working) and world.game().outcome:
            break
    assert world.game().outcome is Outcome.TRAINER_WON
    while trainer.step().acted or watched.context.queue.is_busy:
        pass
    watched.step(trainer)
    assert watched.causes == [(Cause.CLOCK_HALF_GONE, False, 1), (Cause.CLOCK_HALF_GONE, True, 1)]
    assert watched.metric("games_live") == 0 and watched.metric("least_clock_ratio") == 1.0
    sent = [notice.receipt for notice in watched.told if notice.what is What.SENT and notice.receipt is not None]
    assert watched.metric("transactions_total") == len(sent) > 3
    assert watched.metric("gas_total") == sum(receipt.gas_used for receipt in sent)
    written = entries(watched.log)
    assert len([one for one in written if one["what"] == "sent"]) == len(sent)
    assert [one["text"].split(":")[0] for one in written if one["what"] == "alert"] == [
        "clock-half-gone",
        "resolved",
    ]


def test_funds_store_and_chain_are_looked_after(quick_node: ChainNode, tmp_path: Path) -> None:
    world = World(quick_node, tmp_path)
    watched = Watched(world, "trainer")
    monitor = watched.monitor
    look = Look(progress=Progress(state="waits"))
    monitor.look(look)
    watched.pass_by(1.0)
    assert watched.causes == [] and watched.metric("balance_ether") > watched.metric("needed_ether") > 0
    assert monitor.ready() == (True, {"role": "trainer", "chain": "", "store": ""})

    # All but a little of the account's ether goes away.
    sender, second = world.senders["trainer"], world.senders["second"].address
    left = world.balance("trainer")
    sender.send(second, b"", value=left - 10**15)
    monitor.probe()
    watched.pass_by(1.0)
    watched.pass_by(1.0)
    assert watched.causes == [(Cause.FUNDS_LOW, False, None)]
    world.senders["second"].send(sender.address, b"", value=10**18)
    monitor.probe()
    watched.pass_by(1.0)
    assert watched.causes[1:] == [(Cause.FUNDS_LOW, True, None)]

    # The chain is away for a minute, then the store.
    monitor.look(Look(progress=look.progress, outage=ChainUnavailable("no answer \x1b[2J.")))
    watched.pass_by(1.0)
    watched.pass_by(OUTAGE_SECONDS)
    assert watched.causes[2:] == [(Cause.CHAIN_UNREACHABLE, False, None)]
    assert "\x1b" not in str(watched.messenger.sent[-1]["text"])
    assert monitor.ready()[0] is False and monitor.health()[0] is True
    monitor.look(look)
    watched.pass_by(1.0)
    watched.pass_by(OUTAGE_SECONDS)
    assert watched.causes[3:] == [(Cause.CHAIN_UNREACHABLE, True, None)]

    monitor.unreachable(StoreUnavailable("the store is away."))
    watched.pass_by(1.0)
    watched.pass_by(OUTAGE_SECONDS)
    assert watched.causes[4:] == [(Cause.STORE_UNREACHABLE, False, None)]
    monitor.probe()  # the folder is there
    watched.pass_by(1.0)
    watched.pass_by(OUTAGE_SECONDS)
    assert watched.causes[5:] == [(Cause.STORE_UNREACHABLE, True, None)]

    # And a loop that has stopped is what a supervisor is to restart it for.
    watched.pass_by(400)
    assert monitor.health()[0] is False
    assert watched.causes[6:] == [(Cause.ROLE_STUCK, False, None)]
    monitor.ended("this machine does not compute as it has to.")
    assert watched.messenger.sent[-1]["cause"] == "role-ended"
