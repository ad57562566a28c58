"""`tiebreak devnet`: a development chain with the contract on it, its funds and its clock."""

from __future__ import annotations

import shlex
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tiebreak import quantities
from tiebreak.cli import network, output
from tiebreak.cli.failures import CommandError, WrongUsage
from tiebreak.cli.option_groups import JSON, command, option
from tiebreak.quantities import in_ether, in_utc

if TYPE_CHECKING:
    from eth_typing import ChecksumAddress

    from tiebreak.contract.game import VerificationGame
    from tiebreak.devnet.launcher import Devnet, DevnetState
    from tiebreak.rpc.node import ChainNode

FUNDING = 100 * 10**18
"""Wei that `--fund` gives."""

_ATTEMPTS = 50
"""Most attempts at a payment whose nonce other processes take."""


@command("devnet", "tiebreak devnet --state devnet", "tiebreak devnet --fund 0x...", "tiebreak devnet --advance 8d")
def devnet(
    port: int = option(
        "TCP port on the loopback interface; 0 for any.", 8545, min=0, max=65535, envvar="TIEBREAK_DEVNET_PORT"
    ),
    kind: str = option("anvil, embedded, or auto: anvil if it is installed.", "auto"),
    state: Path | None = option(
        "Directory whose file `environment` points a shell to the chain (`. DIR/environment`). Anvil keeps its chain "
        "here and goes on with it; the embedded one is new at each start.",
        metavar="DIR",
    ),
    fund: list[str] | None = option(
        "Give this account 100 ether, on the chain that runs at this port or else on the one to be run. Repeatable.",
        metavar="ADDRESS",
    ),
    advance: int | None = option(
        "Move the clock of the chain that runs at this port, and do not run one.",
        metavar="TIME",
        parser=quantities.seconds,
    ),
    json: bool = JSON,
) -> None:
    """Run a development chain with the contract on it, until interrupted; or fund accounts of one that runs, or move
    its clock."""
    accounts = [network.address(one, "the account") for one in fund or []]
    running = _running(port) if accounts or advance is not None else None
    if running is None and advance is not None:
        raise CommandError(
            f"no development chain runs at port {port}: start one with `tiebreak devnet`, or name its port with --port."
        )
    if running is None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        _run(port, kind, state, accounts, json)
    elif state is not None:
        raise WrongUsage(f"a development chain runs at port {port} already: leave --state away, or stop that chain.")
    else:
        _change(running, accounts, advance, json)


def _running(port: int) -> ChainNode | None:
    """Find the development chain at a port of this machine; None if nothing listens there. Raises CommandError if
    something else does."""
    from tiebreak.rpc.chain_errors import ChainError, ChainUnavailable
    from tiebreak.rpc.node import DEVELOPMENT_CHAINS, ChainNode
    from tiebreak.rpc.transport import HttpTransport

    if port == 0:
        return None
    node = ChainNode(HttpTransport(f"http://127.0.0.1:{port}", attempts=1))
    try:
        if node.chain_id in DEVELOPMENT_CHAINS:
            return node
    except ChainUnavailable:
        return None
    except ChainError:
        pass
    raise CommandError(f"what listens at port {port} is no development chain: name the chain's port with --port.")


def _change(node: ChainNode, accounts: list[ChecksumAddress], advance: int | None, as_json: bool) -> None:
    balances = _fund(node, accounts)
    if advance is not None:
        node.advance_time(advance)
    instant = node.head().timestamp
    if as_json:
        output.show_json({"timestamp": instant, "balances_wei": {one: str(wei) for one, wei in balances.items()}})
        return
    if balances:
        output.show_facts("Funded", {one: in_ether(wei) for one, wei in balances.items()})
    if advance is not None:
        output.show_line(f"The chain's clock shows {in_utc(instant)}.")


def _fund(node: ChainNode, accounts: list[ChecksumAddress]) -> dict[ChecksumAddress, int]:
    """Give each account `FUNDING`. Return the balances that they have then."""
    from itertools import count

    from tiebreak.rpc.chain_errors import NonceTaken
    from tiebreak.transactions.keys import ACCOUNTS, devnet_account
    from tiebreak.transactions.sender import Sender

    for one in accounts:
        for attempt in count(1):
            try:
                Sender(node, devnet_account(ACCOUNTS - 1)).send(one, b"", value=FUNDING)
                break
            except NonceTaken:
                # All terminals of the tutorial pay from one account, and may do so at the same moment.
                if attempt == _ATTEMPTS:
                    raise
    return {one: node.balance(one) for one in accounts}


def _run(port: int, kind: str, state: Path | None, accounts: list[ChecksumAddress], as_json: bool) -> None:
    from contextlib import ExitStack

    from tiebreak.devnet.launcher import DevnetState, start_devnet
    from tiebreak.rpc.chain_errors import DevnetError
    from tiebreak.rpc.node import connect

    with ExitStack() as stack:
        try:
            kept = stack.enter_context(DevnetState(state)) if state is not None else None
            chain = stack.enter_context(start_devnet(port, kind=kind, state=kept))
            node = connect(chain.url)
            game, is_known = _contract(node, kept)
            _fund(node, accounts)
            if kept is not None:
                kept.announce(chain.url, game.address)
            _introduce(chain, game, kept, is_known=is_known, as_json=as_json)
            while chain.running:
                time.sleep(0.2)
        except KeyboardInterrupt:
            return
        raise DevnetError("the development chain has ended by itself: start it again.")


def _contract(node: ChainNode, kept: DevnetState | None) -> tuple[VerificationGame, bool]:
    """Return the contract on the chain, put there if it is not, and whether it was there."""
    from tiebreak.contract.game import VerificationGame
    from tiebreak.rpc.chain_errors import DeploymentError
    from tiebreak.transactions.keys import ACCOUNTS, devnet_account
    from tiebreak.transactions.sender import Sender

    if kept is not None and kept.contract is not None:
        try:
            return VerificationGame.at(node, kept.contract), True
        except DeploymentError:
            pass  # of another version, or a chain that was deleted
    return VerificationGame.deploy(Sender(node, devnet_account(ACCOUNTS - 1))), False


def _introduce(
    chain: Devnet, game: VerificationGame, kept: DevnetState | None, *, is_known: bool, as_json: bool
) -> None:
    from tiebreak.transactions.keys import ACCOUNTS, BALANCE, devnet_account

    accounts = [devnet_account(index) for index in range(ACCOUNTS)]
    if as_json:
        output.show_json_line(
            {
                "kind": chain.kind,
                "chain": chain.url,
                "contract": game.address,
                "jobs": game.job_count(),
                "accounts": [{"address": one.address, "private_key": bytes(one.key)} for one in accounts],
            }
        )
        return
    output.show_facts(f"Development chain ({chain.kind})", {"chain": chain.url, "contract": game.address})
    output.show_line("")
    had = " at its start" if is_known else ""
    output.show_facts(
        f"Accounts with {in_ether(BALANCE)} each{had}, and their keys, which everybody knows",
        {one.address: bytes(one.key) for one in accounts},
    )
    output.show_line("")
    output.show_line("To use it in another terminal:")
    if kept is not None:
        output.show_line(f"  . {shlex.quote(str(kept.directory / 'environment'))}")
    else:
        output.show_line(f"  export TIEBREAK_CHAIN={chain.url} TIEBREAK_CONTRACT={game.address}")
    keeps = f"{kept.directory} keeps it" if kept is not None and chain.kind == "anvil" else "nothing of it is kept"
    output.show_line(f"Ctrl-C ends the chain; {keeps}.")
    output.flush()
