"""The view of `status` of an account's jobs and games, held against the contract."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence

import pytest
from rich.console import Console, RenderableType
from tiebreak.cli.summary_text import game_text, job_text, show_account
from tiebreak.contract.enums import Outcome, Side
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.job_role import Role
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak_demo.adversary.parties import lying_auditor

from tests.e2e.world import World

_HASH = re.compile(r"0x[0-9a-f]{64}|0x[0-9a-fA-F]{40}|baf[a-z2-7]{56}")


def printed(*parts: RenderableType) -> str:
    """Output on a terminal of 80 columns. It must cut nothing and need no wider line."""
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=False)
    for part in parts:
        console.print(part)
    assert all(len(line) <= 80 for line in file.getvalue().splitlines())
    assert "…" not in file.getvalue()
    return file.getvalue()


def play(world: World, roles: Sequence[Role], looks: int) -> None:
    for _ in range(looks):
        for role in roles:
            role.step()


@pytest.mark.slow_but("anvil*")
def test_an_account_sees_its_parts_and_the_clocks_of_its_games(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(name: str, *, as_json: bool = False) -> str:
        show_account(world.contract, world.senders[name].address, {"jobs": 1}, as_json)
        return capsys.readouterr().out

    world.post()
    assert "no job yet" in shown("second") and "customer" in shown("customer")
    trainer = TrainerRole(world.context("trainer"), world.job)
    auditor = lying_auditor(world.context("auditor"), world.job, first_wrong_step=4)
    # In a search one side is to move; while a level is opened, both are.
    while not world.contract.job(world.job).game_count or (
        sum(bool(clock.started_at) for clock in world.game().clocks) != 1 or not world.game().spent[Side.TRAINER]
    ):
        play(world, [trainer, auditor], 1)
    for name, part in (("trainer", "trainer"), ("auditor", "auditor")):
        text = shown(name)
        assert part in text and "next move by" in text and text.count(" left") >= 2 and "CLAIMED" in text
        (job,) = json.loads(shown(name, as_json=True))["account_jobs"]
        assert job["parts"] == [part] and [game["game"] for game in job["games"]] == [1]
    assert "Game 1" not in shown("customer"), "it is no party of the game"
    world.run(trainer, auditor)
    assert world.game().outcome is Outcome.TRAINER_WON and "next move by" not in shown("trainer")


@pytest.mark.slow_but("anvil*")
def test_a_job_and_its_games_fit_a_terminal_with_every_hash_whole(world: World) -> None:
    world.post()
    world.run(TrainerRole(world.context("trainer"), world.job), AuditorRole(world.context("auditor"), world.job))
    world.run(lying_auditor(world.context("second"), world.job, first_wrong_step=4))
    job = world.contract.job(world.job)
    text = printed(job_text(world.job, job, world.node.now()), game_text(1, world.game(), world.node.now()))
    claim = job.claim
    wanted = {f"0x{claim.checkpoint_root.hex()}", f"0x{claim.final_state_root.hex()}", claim.trainer, job.customer}
    wanted |= {job.spec.referee, job.spec.adjudicator, job.job_cid, claim.log_cid, claim.model_cid}
    assert wanted | {world.senders["second"].address} == set(_HASH.findall(text))
    assert "next move by" in text and "by the chain's clock" in text
