"""Strangers' logs and models that are spoiled or cannot be had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.roles.transaction_queue import Order, TransactionQueue

from tests.adversaries import spoiling
from tests.e2e.world import World, ended

pytestmark = pytest.mark.slow


@pytest.fixture
def world(quick_world: World) -> World:
    return quick_world


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
    context = world.context("trainer")
    trainer = TrainerRole(replace(context, store=spoiling(context.store, spoil)), world.job)
    world.run(trainer, AuditorRole(world.context("auditor"), world.job))
    assert world.contract.job(world.job).attestations == 1
    assert world.said("without the log") or world.said("the audit goes without it")


class NoLogQueue(TransactionQueue):
    """Commits with content identifiers that lead nowhere."""

    def put(self, order: Order) -> bool:
        if order.call.function == "commit":
            *claim, _, _ = order.call.arguments
            order = replace(order, call=replace(order.call, arguments=(*claim, "Qm" + "1" * 44, "rubbish")))
        return super().put(order)


def test_a_log_that_cannot_be_had_is_done_without_and_a_missing_model_is_reported(world: World) -> None:
    world.post()
    trainer = TrainerRole(replace(world.context("trainer"), make_queue=NoLogQueue), world.job)
    world.run(trainer, AuditorRole(world.context("auditor"), world.job))
    assert world.said("the audit goes without it")
    assert world.contract.job(world.job).attestations == 1
    world.pass_challenge_window()
    progress = ended(world.customer())
    assert "has not published its model" in progress.state
    assert not (world.root / "model.safetensors").exists()
