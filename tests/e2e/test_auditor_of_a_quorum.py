"""Roles that ask several nodes, of which one lies: the game is won, and no bond is put on a lie."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tiebreak.contract.enums import JobStatus, Outcome
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.rpc import quorum
from tiebreak.rpc.chain_errors import RpcRefused
from tiebreak.rpc.node import ChainNode
from tiebreak.rpc.quorum import quorum_of
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender
from tiebreak_demo.adversary.parties import poisoning_trainer

from tests.client.hostile_node import HostileNode
from tests.client.inline_jobs import Inline
from tests.e2e.world import NAMES, World

pytestmark = pytest.mark.slow


def refusing(params: list[Any], true: Any) -> Any:
    raise RpcRefused("eth_estimateGas", 3, "execution reverted", b"")


@pytest.mark.parametrize("honest", [1, 2])
def test_an_auditor_wins_though_a_node_hides_the_game(
    tmp_path: Path, honest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quorum, "GRACE", 30.0)  # the nodes are one chain here, and a busy machine is slow
    chain = EmbeddedChain()
    world = World(ChainNode(chain), tmp_path)
    world.post()
    cheat = poisoning_trainer(world.context("trainer"), world.job, poisoned_step=7)
    liar = HostileNode(chain)
    good = [HostileNode(chain, f"honest {i}") for i in range(honest)]
    node = quorum_of([liar, *good], clock=lambda: 60 * time.monotonic())
    contract = world.contract
    sender = Sender(node, devnet_account(NAMES.index("auditor")), directory=tmp_path / "auditor")
    context = RoleContext(
        contract=type(contract)(node, contract.address, sender),
        sender=sender,
        store=world.store,
        directory=tmp_path / "auditor",
        notify=world.notices.append,
        background_jobs=Inline(),
    )
    auditor = AuditorRole(context, world.job)
    while not contract.game_count():
        cheat.step()
        auditor.step()
    # From here on the first node shows the chain as it is now, for ever, and says that every move would fail or has.
    before = hex(world.node.head().number)
    liar.lies["eth_call"] = lambda params, true: chain.request("eth_call", [params[0], before])
    liar.lies["eth_getLogs"] = lambda params, true: []
    liar.lies["eth_estimateGas"] = refusing
    liar.lies["eth_getTransactionReceipt"] = lambda params, true: true and true | {"status": "0x0"}
    liar.swallows = True
    ends = time.monotonic() + 300
    contradicted = undecided = False
    while not world.game().outcome:
        assert time.monotonic() < ends
        cheat.step()
        contradicted |= bool(node.agreement.contradiction)
        undecided |= node.agreement.undecided
        try:
            auditor.step()
        except Exception as error:  # an outage of a look, as `Role.run` takes it
            assert "node" in str(error), error
    assert world.game().outcome is Outcome.CHALLENGER_WON
    assert world.status is JobStatus.REJECTED
    assert contradicted
    assert undecided is (honest == 1)
