"""Bonds of audits, seals and appeals in `status`: together with credits, all that lies in the contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiebreak.cli.account_summary import AccountSummary, read_summary
from tiebreak.cli.summary_text import next_step
from tiebreak.contract.contract_watch import find_rows
from tiebreak.contract.enums import AuditStatus, JobStatus, Outcome, Side
from tiebreak.contract.game import VerificationGame
from tiebreak.devnet.embedded import embedded_node
from tiebreak.game.moves import Leaves
from tiebreak.game.strategy import Known, forced_move
from tiebreak.roles.player import call_of

from tests.e2e.world import NAMES, TERMS, World, with_terms

pytestmark = pytest.mark.slow

FEE, BOND = 10**14, TERMS.challenger_bond
OPEN = with_terms(attestations_needed=1, audit_fee=FEE, attestation_bond=BOND)
CID = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(embedded_node(), tmp_path)


def by(world: World, name: str) -> VerificationGame:
    return world.contract.by(world.senders[name])


def summaries(world: World) -> Iterator[tuple[str, AccountSummary]]:
    for name in NAMES:
        yield name, read_summary(world.contract, world.senders[name].address)


def stakes(world: World) -> dict[str, int]:
    """Bonds and escrows of every account that has any. INVARIANT: with credits they are what lies in the contract."""
    found = dict(summaries(world))
    assert sum(one.bonds + one.escrow + one.due + one.credit for one in found.values()) == world.contract_balance()
    held = {name: one.bonds + one.escrow + one.due for name, one in found.items()}
    return {name: wei for name, wei in held.items() if wei}


def steps(world: World, *names: str) -> list[str]:
    """The next step as each is told it."""
    found = dict(summaries(world))
    return [next_step(found[name].jobs[0], found[name].now) for name in names]


def tree(world: World, last: int) -> Leaves:
    """A claim by nobody's training: its last state is another one for another `last`."""
    intervals = world.contract.job(world.job).spec.training.intervals
    return Leaves([bytes([1]) * 32] * (intervals - 1) + [bytes([last]) * 32])


def test_attestations_and_appeals_are_counted_until_the_verdict_is_paid(world: World) -> None:
    world.post(terms=OPEN)
    posted, claimed, better = world.contract.job(world.job), tree(world, 2), tree(world, 3)
    by(world, "trainer").send(
        world.contract.commit(
            world.job,
            spec_hash=posted.spec_hash,
            claimed=claimed.as_next_root(),
            final_state_root=claimed.payloads[-1],
            log_cid=CID,
            model_cid=CID,
            bond=OPEN.trainer_bond,
        )
    )
    by(world, "second").send(
        world.contract.attest(
            world.job, spec_hash=posted.spec_hash, checkpoint_root=claimed.root, log_cid=CID, model_cid=CID, bond=BOND
        )
    )
    by(world, "auditor").send(
        world.contract.challenge(
            world.job, spec_hash=posted.spec_hash, claimed_root=claimed.root, checkpoint_root=better.root, bond=BOND
        )
    )
    all_bonds = {
        "customer": OPEN.reward + FEE,
        "trainer": OPEN.trainer_bond,
        "second": BOND,
        "auditor": OPEN.challenger_bond,
    }
    assert stakes(world) == all_bonds

    play_silent_trainer(world, 1, better)
    assert world.game(1).outcome is Outcome.CHALLENGER_WON and world.status is JobStatus.APPEALABLE
    assert stakes(world) == all_bonds
    assert all(said.startswith("appeal, in") for said in steps(world, "second", "auditor", "trainer"))

    by(world, "second").send(world.contract.appeal(world.job, spec_hash=posted.spec_hash, bond=OPEN.challenger_bond))
    assert stakes(world) == all_bonds | {"second": BOND + OPEN.challenger_bond}
    assert dict(summaries(world))["second"].jobs[0].games[1].side is Side.TRAINER
    assert steps(world, "auditor")[0].startswith("your move in game 2, in")
    play_silent_trainer(world, 2, better)
    assert stakes(world) == all_bonds
    world.pass_time(world.contract.job(world.job).audits.appeal_deadline)
    assert steps(world, "auditor") == ["finalize"]
    by(world, "auditor").send(world.contract.finalize(world.job))
    assert world.status is JobStatus.REJECTED and world.contract.job(world.job).audits.lost
    assert stakes(world) == {} and steps(world, "second", "auditor") == ["over", "over"]
    (audit,) = world.contract.audits_of(world.job)
    assert audit.status is AuditStatus.ATTESTED


def play_silent_trainer(world: World, number: int, mine: Leaves) -> None:
    """The challenger finds the checkpoint and opens it, and the trainer's side lets its clock run out."""
    known = Known({(): mine})
    for _ in range(2):
        game = world.game(number)
        index, interval = game.search.index, world.contract.job(world.job).spec.training.interval
        known.trees[(index,)] = Leaves([bytes([step]) * 32 for step in range(interval - 1)] + [mine.payloads[index]])
        known.rows = find_rows(world.contract, number, game)
        move = forced_move(game, Side.CHALLENGER, known)
        by(world, "auditor").send(call_of(world.contract, number, move))  # type: ignore[arg-type]
    world.pass_time(world.game(number).deadlines[Side.TRAINER])
    by(world, "auditor").send(world.contract.claim_timeout(number))
