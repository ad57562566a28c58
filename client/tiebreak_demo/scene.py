"""The scene of the stories: a fresh chain with the contract, a content store, and the parties with their accounts;
and its transactions and gas, read from the chain and not from what the parties say."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from eth_account.signers.local import LocalAccount
from eth_typing import ChecksumAddress
from rich.console import Console
from tiebreak.contract.game import VerificationGame
from tiebreak.devnet.launcher import start_devnet
from tiebreak.process_resources import environment_of_others
from tiebreak.roles.context import RoleContext
from tiebreak.roles.notices import Notify
from tiebreak.rpc.node import ChainNode, connect
from tiebreak.store import open_store
from tiebreak.transactions.keys import KEY_VARIABLE, devnet_account
from tiebreak.transactions.sender import Sender

from tiebreak_demo.processes import A, B, ChildProcesses, Machine

TIEBREAK = (sys.executable, "-P", "-m", "tiebreak.cli.app")
"""The command `tiebreak`, in a process of its own."""


@dataclass(frozen=True, slots=True)
class Spent:
    """A transaction, successful or not: its sender, its gas, its fee in wei."""

    sender: ChecksumAddress
    gas: int
    fee: int


def transactions(node: ChainNode, first_block: int) -> list[Spent]:
    """Return all transactions from a block up to the newest one. Raises ChainError."""
    found = []
    for number in range(first_block, node.head().number + 1):
        for name in node.transactions_of(number) or ():
            sent, receipt = node.transaction(name), node.receipt(name)
            assert sent is not None and receipt is not None, "a block has it"
            found.append(Spent(sent.sender, receipt.gas_used, receipt.fee))
    return found


PACE = 0.5
"""Seconds between two looks of a party at the chain: every look costs its process some milliseconds, on cores that
train."""


@dataclass(frozen=True, slots=True, eq=False)
class Party:
    """An account with a name, and the machine on which its process runs."""

    name: str
    account: LocalAccount
    machine: Machine

    @property
    def address(self) -> ChecksumAddress:
        address: ChecksumAddress = self.account.address
        return address


class Scene(ExitStack):
    """A development chain on the loopback interface, so that other processes can use it, and all the rest in
    `directory`. Leaving the `with` block ends the chain."""

    def __init__(self, directory: Path, *, pace: float = PACE) -> None:
        """pace: seconds between two looks of a party at the chain, and so between two moves."""
        super().__init__()
        self.directory = directory
        self.pace = pace
        self._chain = self.enter_context(start_devnet(kind="embedded"))
        self.node = connect(self._chain.url)
        self.contract = VerificationGame.deploy(Sender(self.node, devnet_account(9)))
        self.customer = Party("customer", devnet_account(0), A)
        self.trainer = Party("trainer", devnet_account(1), A)
        self.auditor = Party("auditor", devnet_account(2), B)
        self.referee = Party("referee", devnet_account(3), A)
        self.liar = Party("lying auditor", devnet_account(4), B)
        self.silent = Party("silent auditor", devnet_account(5), B)
        self.lazy = Party("lazy auditor", devnet_account(6), B)

    def environment(self, party: Party) -> dict[str, str]:
        """Return the environment of a party's process: its machine's profile, its key, and where everything is."""
        key, store = "0x" + bytes(party.account.key).hex(), str(self.directory / "store")
        return party.machine.environment() | self.whereabouts() | {KEY_VARIABLE: key, "TIEBREAK_STORE": store}

    def whereabouts(self) -> dict[str, str]:
        """Return the variables that point a command at this chain and contract, without a key."""
        return {"TIEBREAK_CHAIN": self._chain.url, "TIEBREAK_CONTRACT": self.contract.address}

    def room(self, party: Party) -> Path:
        """Return the party's own directory."""
        return self.directory / party.name.replace(" ", "-")

    def context(self, party: Party, notify: Notify) -> RoleContext:
        """Return the context of a party that is played in this process."""
        sender = Sender(self.node, party.account)
        self.room(party).mkdir(parents=True, exist_ok=True)
        return RoleContext(
            contract=self.contract.by(sender),
            sender=sender,
            store=open_store(self.directory / "store"),
            directory=self.room(party),
            notify=notify,
        )

    def pass_time(self, until: int) -> None:
        """Move the chain's clock to just after an instant."""
        self.node.advance_time(max(0, until - self.node.head().timestamp) + 1)


class Page:
    """A page that stays at one address, whichever chain is played on."""

    def __init__(self, port: int) -> None:
        """port: 0 for any. Raises ServingError if it is taken."""
        from tiebreak.http_server import listen_at  # its libraries are an extra

        with listen_at("127.0.0.1", port) as found:
            self.port: int = found.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def show(self, scene: Scene, until: ExitStack, *, files: Sequence[Path]) -> None:
        """Show a chain until the stack is closed. files: directories as of `tiebreak dashboard`."""
        words = [*TIEBREAK, "dashboard", "--port", str(self.port)]
        for directory in files:
            directory.mkdir(parents=True, exist_ok=True)
            words += ["--files", str(directory)]
        children = until.enter_context(ChildProcesses(scene.directory))
        children.start("page", words, environment_of_others() | scene.whereabouts(), lambda line: None)

    def stay(self, console: Console) -> None:
        """Let the page be looked at until Ctrl-C; not where nobody could press it."""
        if not console.is_terminal:
            return
        console.print(f"\nThe page is still at {self.url} (Ctrl-C ends it).", soft_wrap=True)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return
