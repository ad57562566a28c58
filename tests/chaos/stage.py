"""The stage of a round: a chain, a faulty node, a store, the parties, and what each of them had at first."""

from __future__ import annotations

import random
from pathlib import Path

from eth_account.signers.local import LocalAccount
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import Terms
from tiebreak.roles.context import RoleContext
from tiebreak.roles.customer_role import post_job
from tiebreak.roles.policy import Policy
from tiebreak.rpc.node import connect
from tiebreak.store import FolderStore
from tiebreak.transactions.keys import KEY_VARIABLE, devnet_account
from tiebreak.transactions.sender import Sender

from tests.chaos.anvil import Chain
from tests.chaos.disks import Disk
from tests.chaos.dripping_gateway import DrippingGateway
from tests.chaos.faulty_node import FaultyNode, Weather
from tests.chaos.jobs import KINDS
from tests.chaos.parties import Party
from tests.chaos.plans import Audits, Plan

ETHER = 10**18
CLOCK = 3 * 3600
WINDOW = 3 * 3600
BLOCK_SECONDS = 2
"""Length in the chain's time."""
POLL = "0.2"

_TERMS = (
    *("--reward", "1ether", "--trainer-bond", "1ether", "--challenger-bond", "1ether"),
    *("--commit-window", "7d", "--challenge-window", f"{WINDOW}s", "--clock", f"{CLOCK}s", "--referee-clock", "2h"),
)

FEE = ETHER // 10
_AUDITS = {
    Audits.FREE: (),
    Audits.OPEN: ("--attestations", "1", "--audit-fee", f"{FEE}wei"),
    Audits.BLIND: (
        *("--attestations", "1", "--audit-fee", f"{FEE}wei"),
        *("--audit-window", f"{WINDOW}s", "--opening-window", f"{2 * WINDOW // 3}s"),
    ),
}


class Stage:
    """`close` ends everything."""

    def __init__(self, plan: Plan, directory: Path, jobs: Path, *, pause: float) -> None:
        self.plan, self.directory = plan, directory
        self._stores = directory / "stores"
        self._stores.mkdir()
        self.gateway = DrippingGateway(self._stores, plan.seed) if plan.gateway else None
        self.chain = Chain(pause=0.02, step=BLOCK_SECONDS)
        self.faulty = FaultyNode(self.chain.port, plan.seed)
        self.node = connect(self.chain.url)
        self.contract = VerificationGame.deploy(Sender(self.node, devnet_account(9)))
        self.chain.pause = pause
        self.deployed_at = self.chain.height
        self.accounts = self._accounts()
        self.before = {name: self.node.balance(account.address) for name, account in self.accounts.items()}
        self.parties: dict[str, Party] = {}
        self._jobs = jobs

    def _accounts(self) -> dict[str, LocalAccount]:
        names = ["customer", "trainer", "referee", "auditor-0", "auditor-1"]
        names += [f"{kind.value}-{i}" for i, kind in enumerate(self.plan.challengers)]
        return {name: devnet_account(index) for index, name in enumerate(names)}

    def address(self, name: str) -> str:
        return str(self.accounts[name].address)

    def add(self, name: str, words: list[str], *, account: str | None = None, lasting: bool = False) -> Party:
        """A party, not yet started. Dishonest ones have a node without faults."""
        signer = self.accounts[account or name]
        honest = words[0] != "misbehave"
        url = self._nodes(name) if honest else self.chain.url
        environment = {
            KEY_VARIABLE: "0x" + bytes(signer.key).hex(),
            "TIEBREAK_CHAIN": url,
            "TIEBREAK_CONTRACT": self.contract.address,
            "TIEBREAK_STORE": self._content(name),
        }
        disk = Disk(self.directory / name)
        if words[0] == "read-elsewhere":
            words = [*words, str(disk.directory)]
            environment["TIEBREAK_CONFIRMATIONS"] = str(self.plan.confirmations)
        elif honest:
            own = ("--dir", str(disk.directory), "--poll", f"{POLL}s", "--json")
            environment["TIEBREAK_CONFIRMATIONS"] = str(self.plan.confirmations)
            words = [*words, *(own if words[:2] != ["job", "create"] else (own[0], own[1], "--json"))]
        else:
            words = [*words, str(disk.directory), POLL, str(int(bool(self.plan.by_workers)))]
        party = Party(name, signer, honest, words, environment, disk, self.directory / f"{name}.out", lasting)
        self.parties[name] = party
        return party

    def _nodes(self, name: str) -> str:
        """The nodes of an honest party: a faulty one, or three, of which one lies."""
        if not self.plan.several:
            return self.faulty.url(name)
        self.faulty.weather(f"{name}-liar", Weather(lies=True))
        return " ".join(self.faulty.url(one) for one in (name, f"{name}-second", f"{name}-liar"))

    def _content(self, name: str) -> str:
        """The stores of a party: one folder for all, or its own and the gateway."""
        if self.gateway is None:
            return str(self._stores / "shared")
        return f"{self._stores / name.removesuffix('-twin')},gateway+{self.gateway.url}"

    def posting(self) -> Party:
        """The customer that posts the job."""
        referee = self.address("referee")
        terms = (*_TERMS, *_AUDITS[self.plan.audits], "--referee", referee)
        words = ["job", "create", str(self._jobs / f"job-{self.plan.job}"), *terms]
        return self.add("posting", words, account="customer")

    def add_followers(self) -> None:
        """Add the parties that look for jobs by themselves, before there is one."""
        for name in sorted(self.plan.following):
            self._add_role(name, name.split("-")[0], 0)

    def post_rival(self) -> None:
        """Another customer's job, straight through the node."""
        sender = Sender(self.node, devnet_account(8))
        context = RoleContext(
            contract=VerificationGame(self.node, self.contract.address, sender),
            sender=sender,
            store=FolderStore(self._stores / ("rival" if self.plan.gateway else "shared")),
            directory=self.directory / "rival",
            policy=Policy(),
        )
        terms = Terms(
            reward=2 * ETHER,
            trainer_bond=ETHER,
            challenger_bond=ETHER,
            commit_window=WINDOW,
            challenge_window=WINDOW,
            clock_allowance=CLOCK,
            referee_allowance=7200,
            concurrent_games=16,
        )
        other = self._jobs / f"job-{(self.plan.job + 1) % len(KINDS)}"
        post_job(context, other, terms, self.accounts["referee"].address)

    def add_all(self, job: int) -> None:
        """Everybody else."""
        plan = self.plan
        if not plan.rival:
            self.add_followers()
        self.add("customer", ["job", "collect", str(job), "--model", str(self.directory / "model.safetensors")])
        self.add("referee", ["referee", "run"], lasting=True)
        if plan.trainer is None:
            if "trainer" not in plan.following:
                self._add_role("trainer", "trainer", job)
        else:
            self.add("trainer", ["misbehave", plan.trainer, str(job), str(plan.wrong_step)])
        for name in (f"auditor-{i}" for i in range(plan.auditors)):
            if name not in plan.following:
                self._add_role(name, "auditor", job)
        for i, kind in enumerate(plan.challengers):
            self.add(f"{kind.value}-{i}", ["misbehave", kind, str(job), str(plan.wrong_step)])
        if plan.gateway:
            self.add("reader", ["read-elsewhere", str(job)], account="customer")
        if plan.twin is not None:
            self._add_role(plan.twin, plan.twin.split("-")[0], job, twin=True)

    def _add_role(self, name: str, role: str, job: int, *, twin: bool = False) -> None:
        follows = (name in self.plan.following) != twin
        words = [role, "run", *(["--trust-referee", self.address("referee")] if follows else ["--job", str(job)])]
        if role == "trainer" and self.plan.by_workers:
            words += ["--publish-every", "1"]
        if name in self.plan.by_workers:
            words += ["--workers", "1"]
        if role == "auditor":
            words += ["--without-fee"]  # or a liar that seals first has the one place, and nobody honest attests
        party = self.add(name + ("-twin" if twin else ""), words, account=name, lasting=follows)
        party.by_ranks = name in self.plan.by_ranks and not twin

    def set_weather(self, *, storm: bool) -> None:
        for name in [*self.parties, "posting"]:
            rate = self.plan.rates.get(name.removesuffix("-twin"), self.plan.rates["customer"])
            self.faulty.weather(name, Weather(rate if storm else 0.0, log_range=self.plan.log_range))
        if self.gateway is not None:
            self.gateway.rate = max(self.plan.rates.values()) * 2 if storm else 0.0

    def blocks(self) -> list[Path]:
        """Files of the content stores."""
        return sorted(path for path in self._stores.glob("*/blocks/*/*/*") if not path.name.startswith("tmp-"))

    def some_block(self, draw: random.Random) -> Path | None:
        blocks = self.blocks()
        return draw.choice(blocks) if blocks else None

    def close(self) -> None:
        for party in self.parties.values():
            party.kill(0.0)
            party.end_helper()
        self.faulty.close()
        if self.gateway is not None:
            self.gateway.close()
        self.chain.close()
