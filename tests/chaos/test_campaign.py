"""Short campaigns, and what they are made of: the machine, the judge, the faulty node, disks that fail."""

from __future__ import annotations

import json
import multiprocessing
import re
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from tiebreak.contract.enums import JobStatus, Outcome
from tiebreak.contract.events import JobPosted
from tiebreak.devnet.launcher import find_anvil
from tiebreak.roles.sealing import audit_seal
from tiebreak.transactions.keys import devnet_account

from tests.chaos import judge
from tests.chaos.disks import Disk
from tests.chaos.machine import Round, play
from tests.chaos.markets import Market
from tests.chaos.misbehaving import Kind
from tests.chaos.parties import Party
from tests.chaos.plans import FAULTS, plan
from tests.chaos.rounds import Chaos
from tests.chaos.stage import Stage

ROOT = Path(__file__).resolve().parents[2]
APPEALS = pytest.param(["--appeals", "--rounds", "2", "--workers", "2"], marks=pytest.mark.long)
CAMPAIGN = [sys.executable, "-m", "tests.chaos.campaign"]


@pytest.mark.slow
@pytest.mark.skipif(find_anvil() is None, reason="anvil is not installed: run npm ci")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("words", [["--rounds", "2"], APPEALS], ids=" ".join)
def test_a_campaign_of_processes_ends_without_a_violation(words: list[str]) -> None:
    found = subprocess.run([*CAMPAIGN, *words], capture_output=True, text=True, timeout=880, check=False, cwd=ROOT)
    *_, others, counts = found.stdout.strip().splitlines()
    assert found.returncode == 0 and counts.endswith(" 0 violations"), found.stdout + found.stderr
    if "--appeals" in words:
        won = re.search(r"appeals won (\d+)", others)
        assert won is not None and int(won[1]) >= 4, "every round has appeals that are held"


@pytest.mark.slow
def test_nobody_honest_loses_in_a_random_market() -> None:
    play(Market, 5)


@pytest.mark.slow
def test_a_loss_of_somebody_honest_would_be_noticed(tmp_path: Path) -> None:
    markets = (Market(Random(seed), tmp_path / str(seed)) for seed in range(100))
    market = next(one for one in markets if one.is_blind and one.parties[0].honest)
    market.parties[1] = market.auditor("auditor", Kind.SLEEP)
    market.parties[1].kind = None
    assert any("honest loss: auditor has -" in found for found in market.end()), market.describe()


class _Brittle(Round):
    """Breaks at the second crack after a knock; keeps all that was played."""

    FAULTS = ("crack", "knock", "nothing")
    STRIKES = 12
    played: ClassVar[list[list[str]]] = []

    def strike(self, fault: str, draw: Random) -> None:
        self.told.append(fault)
        assert self.told[self.told.index("knock") if "knock" in self.told else 99 :].count("crack") < 2, "it breaks"

    def close(self) -> None:
        self.played.append(self.told)


def test_a_broken_round_is_shrunk_kept_and_played_first_the_next_time(tmp_path: Path) -> None:
    for _ in range(2):
        _Brittle.played.clear()
        with pytest.raises(AssertionError, match="it breaks") as broken:
            play(_Brittle, 50, seed=3, database=tmp_path)
        assert _Brittle.played[-1] == ["knock", "crack", "crack"]
        assert any("fault='knock'" in note for note in broken.value.__notes__)
    assert _Brittle.played[0] == ["knock", "crack", "crack"]


def test_a_seed_decides_the_rounds_of_a_campaign() -> None:
    def rounds(seed: int) -> list[list[str]]:
        told: list[list[str]] = []
        play(type("Calm", (Round,), {"FAULTS": FAULTS, "STRIKES": 3, "strike": lambda one, fault, draw: one.told.append(
            f"{fault} {draw.random()}")}), 5, seed=seed, hear=lambda one, _: told.append(one.told))  # fmt: skip
        return told

    assert rounds(1) == rounds(1) != rounds(2)


def some_stage(seed: int, **parts: Any) -> Stage:
    """A stage with a plan and accounts, and no processes."""
    stage = Stage.__new__(Stage)
    stage.plan = plan(seed, appeals="contract" in parts)
    stage.accounts = {name: devnet_account(index) for index, name in enumerate(("customer", *stage.plan.honest))}
    stage.__dict__.update(parts)
    return stage


def test_the_judge_sees_a_round_whose_appeals_were_not_held_or_were_lost() -> None:
    audits = SimpleNamespace(lost=False)
    games: list[Any] = []
    contract = SimpleNamespace(
        job=lambda number: SimpleNamespace(status=JobStatus.REJECTED, audits=audits),
        games_of=lambda job: range(len(games)),
        game=lambda number: games[number],
    )
    stage = some_stage(1, contract=contract)
    auditor, stranger = stage.accounts["auditor-0"].address, devnet_account(9).address
    for trainer, is_appeal, outcome in (
        (stranger, False, Outcome.CHALLENGER_WON),
        (stranger, True, Outcome.TRAINER_WON),
        (auditor, True, Outcome.VOID),
    ):
        games.append(SimpleNamespace(trainer=trainer, is_appeal=is_appeal, outcome=outcome))
        assert judge._appeals(stage, 1) == ["no appeal was played to its end by an honest auditor"]
    games.append(SimpleNamespace(trainer=auditor, is_appeal=True, outcome=Outcome.TRAINER_WON))
    assert judge._appeals(stage, 1) == [] and judge.won_appeals(stage, 1) == [3]
    audits.lost = True
    assert judge._appeals(stage, 1) == ["honest loss: the verdict has taken the attestations' bonds"]


def test_the_judge_sees_a_job_that_was_posted_twice() -> None:
    contract = SimpleNamespace(events=lambda to_block: [JobPosted.__new__(JobPosted) for _ in range(2)])
    node = SimpleNamespace(head=lambda: SimpleNamespace(number=7))
    stage = some_stage(1, node=node)
    stage.contract = cast(Any, contract)
    assert judge._twice(stage) == ["sent twice: 2 jobs were posted"]


def a_course(stage: SimpleNamespace) -> Chaos:
    """A round without processes."""
    course = Chaos.__new__(Chaos)
    course.stage, course.plan, course.draw = cast(Stage, stage), plan(1), Random(1)
    course._due, course._right_bytes, course._accused = [], {}, set()
    return course


def test_a_block_that_is_spoiled_twice_is_right_in_the_end(tmp_path: Path) -> None:
    block = tmp_path / "block"
    block.write_bytes(b"right bytes")
    course = a_course(SimpleNamespace(some_block=lambda draw: block if block.exists() else None))
    course._spoil_block(1.0, flips=False, removes=False)
    course._spoil_block(2.0, flips=False, removes=True)
    assert not block.exists()
    course._mend(time.monotonic() + 10)
    assert block.read_bytes() == b"right bytes"


def test_a_seal_that_a_reorganisation_has_dropped_is_waited_for(tmp_path: Path) -> None:
    """The clock is not moved past the end of seals while the chain shows a place with an empty seal, though its auditor
    has said before that it had filled it."""
    auditor, contract = devnet_account(1), devnet_account(9).address
    about, root, salt = (31337, contract, 1, auditor.address), bytes([1]) * 32, bytes([2]) * 32
    shown = SimpleNamespace(auditor=auditor.address, seal=audit_seal(*about, checkpoint_root=bytes(32), salt=salt))
    disk = Disk(tmp_path / "role")
    kept = disk.directory / "job" / "sealed-audit.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps({"checkpoint_root": root.hex(), "salt": salt.hex()}))
    course = a_course(
        SimpleNamespace(
            parties={"auditor-0": SimpleNamespace(disk=disk)},
            accounts={"auditor-0": auditor},
            contract=SimpleNamespace(
                address=contract, node=SimpleNamespace(chain_id=31337), audits_of=lambda job: [shown]
            ),
        )
    )
    course.plan = cast(Any, SimpleNamespace(auditors=1))
    assert not course._have_sealed(1, 0.0)
    shown.seal = audit_seal(*about, checkpoint_root=root, salt=salt)
    assert course._have_sealed(1, 0.0)


@pytest.mark.parametrize("has_met", [False, True], ids=["before it had met", "after it had met"])
def test_a_rank_that_goes_on_alone_is_a_violation_if_the_ranks_have_met(has_met: bool, tmp_path: Path) -> None:
    """A rank 0 that is stopped while it waits for the others has nobody to tell, and they wait for it."""
    output = tmp_path / "out"
    output.write_text('{"role": "trainer", "text": "said in a life before"}\n')
    disk = Disk(tmp_path / "role")
    party = Party("trainer", devnet_account(0), True, [], {}, disk, output)
    party._said_before = len(party.said())
    output.write_text(party.said() + ('{"role": "trainer", "what": "heartbeat"}\n' if has_met else '{"error": {}}\n'))
    party.helper = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(60,))
    party.helper.start()
    party.end_helper(0.1)
    assert party.helper is None and bool(party.problems) is has_met
