"""Requests of a role that follows all jobs to its node at the start: few for jobs that are over, however many."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import JobView
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.job_role import JobFollower, JobRole
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.rpc.node import ChainNode
from tiebreak.store import FolderStore
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender

from tests.client.disputes import TERMS, Cast
from tests.client.hostile_node import HostileNode
from tests.client.inline_jobs import Inline


@pytest.fixture(scope="module")
def line() -> HostileNode:
    return HostileNode(EmbeddedChain())


@pytest.fixture(scope="module")
def cast(line: HostileNode) -> Cast:
    return Cast.on(ChainNode(line))


def asked_by(kind: type[JobRole], cast: Cast, line: HostileNode, place: Path) -> int:
    """Requests of a follower's first looks, until it has left all jobs."""
    sender = Sender(cast.customer.node, devnet_account(4), directory=place)
    contract = VerificationGame(cast.customer.node, cast.customer.address, sender)
    store = FolderStore(place / "store")
    context = RoleContext(contract=contract, sender=sender, store=store, directory=place, background_jobs=Inline())

    def make(number: int, posted: JobView) -> JobRole:
        return kind(context, number)

    follower = JobFollower(context, "role", make)
    before = len(line.asked)
    for _ in range(5):
        progress = follower.step()
    assert "follows 0 jobs" in progress.state
    return len(line.asked) - before


@pytest.mark.slow_cases("TrainerRole")
@pytest.mark.parametrize("kind", [TrainerRole, AuditorRole])
def test_jobs_that_are_over_cost_a_restart_no_requests_each(
    kind: type[JobRole], cast: Cast, line: HostileNode, tmp_path: Path
) -> None:
    """A role that has to move in a game must not ask for ten thousand old jobs before."""

    def expired() -> None:
        job = cast.post()
        cast.customer.node.advance_time(TERMS.commit_window + 1)
        cast.customer.send(cast.customer.reclaim(job))

    expired()
    one = asked_by(kind, cast, line, tmp_path / "one")
    for _ in range(3):
        expired()
    assert asked_by(kind, cast, line, tmp_path / "four") == one
