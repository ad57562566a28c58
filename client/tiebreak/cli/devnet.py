"""`tiebreak devnet`: a development chain with the contract on it, its funds and its clock."""

from __future__ import annotations

import shlex
import signal
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from tiebreak import quantities
from tiebreak.cli import network, output
from tiebreak.cli.failures import CommandError, WrongUsage
from tiebreak.cli.option_groups import JSON, command, option
from tiebreak.quantities import in_ether, in_utc

if TYPE_CHECKING:
    from eth_typing import ChecksumAddress

    from tiebreak.contract.game import VerificationGame
    from tiebreak.devnet.launcher import Devnet
    from tiebreak.rpc.node import ChainNode

FUNDING = 100 * 10**18
"""Wei that `--fund` gives."""

_ATTEMPTS = 50
"""Most attempts at a payment whose nonce other processes take."""


@command(
    "devnet", "tiebreak devnet --environment devnet.env", "tiebreak devnet --fund 0x...", "tiebreak devnet --advance 8d"
)
def devnet(
    port: int = option(
        "TCP port on the loopback interface; 0 for any.", 8545, min=0, max=65535, envvar="TIEBREAK_DEVNET_PORT"
    ),
    kind: str = option("anvil, embedded, or auto: anvil if it is installed.", "auto"),
    environment: Path | None = option(
        "Write the addresses of chain and contract there while it runs; `. FILE` points a shell to it.", metavar="FILE"
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
        signal.signal(signal.SIGTERM, _interrupt)
        _run(port, kind, environment, accounts, json)
    elif environment is not None:
        raise WrongUsage(
            f"a development chain runs at port {port} already: leave --environment away, or stop that chain."
        )
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


def _run(port: int, kind: str, environment: Path | None, accounts: list[ChecksumAddress], as_json: bool) -> None:
    from contextlib import ExitStack

    from roundlog.storage import replace_file

    from tiebreak.contract.game import VerificationGame
    from tiebreak.devnet.launcher import start_devnet
    from tiebreak.rpc.chain_errors import DevnetError
    from tiebreak.rpc.node import connect
    from tiebreak.transactions.keys import ACCOUNTS, devnet_account
    from tiebreak.transactions.sender import Sender

    with ExitStack() as stack:
        try:
            chain = stack.enter_context(start_devnet(port, kind=kind))
            node = connect(chain.url)
            game = VerificationGame.deploy(Sender(node, devnet_account(ACCOUNTS - 1)))
            _fund(node, accounts)
            if environment is not None:
                stack.callback(environment.unlink, missing_ok=True)
                with replace_file(environment) as file:
                    file.write(f"export TIEBREAK_CHAIN={chain.url} TIEBREAK_CONTRACT={game.address}\n".encode())
            _introduce(chain, game, environment, as_json=as_json)
            while chain.running:
                time.sleep(0.2)
        except KeyboardInterrupt:
            return
        raise DevnetError("the development chain has ended by itself: start it again.")


def _introduce(chain: Devnet, game: VerificationGame, environment: Path | None, *, as_json: bool) -> None:
    from tiebreak.transactions.keys import ACCOUNTS, BALANCE, devnet_account

    accounts = [devnet_account(index) for index in range(ACCOUNTS)]
    if as_json:
        output.show_json_line(
            {
                "kind": chain.kind,
                "chain": chain.url,
                "contract": game.address,
                "accounts": [{"address": one.address, "private_key": bytes(one.key)} for one in accounts],
            }
        )
        return
    output.show_facts(f"Development chain ({chain.kind})", {"chain": chain.url, "contract": game.address})
    output.show_line("")
    output.show_facts(
        f"Accounts with {in_ether(BALANCE)} each, and their keys, which everybody knows",
        {one.address: bytes(one.key) for one in accounts},
    )
    output.show_line("")
    output.show_line("To use it in another terminal:")
    where = f"export TIEBREAK_CHAIN={chain.url} TIEBREAK_CONTRACT={game.address}"
    output.show_line(f"  {where if environment is None else f'. {shlex.quote(str(environment.absolute()))}'}")
    output.show_line("Ctrl-C ends the chain; nothing of it is kept.")
    output.flush()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
