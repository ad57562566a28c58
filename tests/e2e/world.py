"""A small world for whole stories: a chain, a store, funded parties, and accounts kept to the wei."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from roundlog.capture import Task
from roundlog.commitments import MerkleTree, tensor_root
from roundlog.descriptors import Family, describe
from roundlog.spec import TrainingSpec
from roundlog.training.job import Job
from tiebreak.contract.enums import JobStatus, Outcome, Side
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import GameView, PostedSpec, Terms
from tiebreak.roles.context import RoleContext
from tiebreak.roles.customer_role import CustomerRole, post_job
from tiebreak.roles.job_role import Role
from tiebreak.roles.notices import Notice, Progress
from tiebreak.roles.policy import Policy
from tiebreak.roles.referee_role import RefereeRole
from tiebreak.rpc.node import ChainNode
from tiebreak.store import FolderStore
from tiebreak.strategy import next_root_of
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender
from tiebreak.transactions.signer import Sent
from torch import nn

from tests.client.inline_jobs import Inline
from tests.engine.kept_jobs import kept_job

NAMES = ("deployer", "customer", "trainer", "auditor", "second", "referee")

TERMS = Terms(
    reward=10**16 + 3,
    trainer_bond=4 * 10**15 + 1,
    challenger_bond=2 * 10**15 + 1,
    commit_window=100_000,
    challenge_window=50_000,
    clock_allowance=5_000,
    referee_allowance=7_000,
    concurrent_games=4,
)
"""Odd bonds, so that halves are not equal."""


class CountingSender(Sender):
    """Adds up the fees that the account pays."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._submitted: dict[int, Sent] = {}

    @property
    def fees(self) -> int:
        found = {sent.receipt.transaction: sent.receipt.fee for sent in self._submitted.values() if sent.receipt}
        return sum(found.values())

    def submit(self, *arguments: Any, **options: Any) -> Sent:
        sent = super().submit(*arguments, **options)
        self._submitted[id(sent)] = sent
        return sent


def small_job(
    steps: int = 15, interval: int = 3, rate: Callable[[int], float] = lambda step: 1.0, kept_as: str = "logistic_sgd"
) -> Job:
    """A kept job with another length. rate: factor of its learning rate, by the step."""
    kept = kept_job(kept_as)
    schedule = torch.tensor([[float(kept.schedule[0, 0]) * rate(step)] for step in range(steps)])
    spec = replace(kept.spec, steps=steps, interval=interval, schedule_root=tensor_root(schedule))
    return replace(kept, spec=spec, schedule=schedule)


def wide_task(steps: int = 4, interval: int = 2) -> Task:
    """Its rows fit no transaction."""
    torch.manual_seed(7)
    model = nn.Linear(17_000, 2)
    return Task(
        model=model,
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch["x"]), batch["y"]),
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-5),
        dataset={"x": torch.randn(3, 17_000), "y": torch.randint(0, 2, (3,))},
        batch_size=2,
        steps=steps,
        interval=interval,
        seed=2,
    )


@dataclass(frozen=True)
class Shares:
    """Wei of a lost bond; the rest is burnt."""

    gas: int
    half: int
    customer: int

    @property
    def winner(self) -> int:
        """The sum that goes to a winner that was the first with its root."""
        return self.gas + self.half


def function_of(job_files: Path) -> int:
    """The first operator of a job that is an elementary function."""
    program = Job.read(job_files).program
    return next(q for q in range(len(program.nodes)) if describe(program, q).family is Family.FUNCTION)


class Ticks:
    """A clock that passes a minute whenever it is looked at, so that no test waits for a pause."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 60.0
        return self.now


class World:
    """`job` is the id of the posted job once `post` has been called."""

    def __init__(self, node: ChainNode, root: Path) -> None:
        self.node = node
        self.root = root
        self.store = FolderStore(root / "store")
        self.senders = {name: CountingSender(node, devnet_account(i)) for i, name in enumerate(NAMES)}
        self.contract = VerificationGame.deploy(self.senders["deployer"])
        self.before = {name: self.balance(name) + self.senders[name].fees for name in NAMES}
        self.notices: list[Notice] = []
        self.policy = Policy()
        """Terms that every party accepts."""
        self.job = 0

    def context(self, name: str) -> RoleContext:
        return RoleContext(
            contract=self.contract.by(self.senders[name]),
            sender=self.senders[name],
            store=self.store,
            directory=self.root / name,
            policy=self.policy,
            notify=self.notices.append,
            background_jobs=Inline(),
        )

    def post(self, job: Job | None = None, terms: Terms = TERMS) -> int:
        (job or small_job()).write(self.root / "files")
        referee = self.senders["referee"].address
        self.job = post_job(self.context("customer"), self.root / "files", terms, referee)
        return self.job

    def spec(self, training: TrainingSpec) -> PostedSpec:
        """A spec with the judges that jobs have here."""
        return PostedSpec(training, self.senders["referee"].address, self.contract.adjudicator())

    def claim_anything(self, steps: int, cid: str) -> None:
        """A commitment to roots that nobody has computed, by the second trainer. cid: of log and model."""
        liar, root = self.contract.by(self.senders["second"]), bytes([7]) * 32
        hashed, bond = self.contract.job(self.job).spec_hash, TERMS.trainer_bond
        claim = {"claimed": next_root_of(MerkleTree([root] * steps)), "final_state_root": root}
        liar.send(liar.paying("commit", self.job, spec_hash=hashed, **claim, log_cid=cid, model_cid=cid, bond=bond))

    def customer(self) -> CustomerRole:
        return CustomerRole(self.context("customer"), self.job, model=self.root / "model.safetensors")

    def referee(self) -> RefereeRole:
        return RefereeRole(self.context("referee"))

    def run(self, *roles: Role) -> None:
        """Let everybody step in turn until nobody has anything to do."""
        working = list(roles)
        idle = 0
        for _ in range(200):
            progress = {role: role.step() for role in working}
            working = [role for role in working if not progress[role].finished]
            # Twice, because a role that only hears that a block has its move has changed what the one before it sees.
            idle = 0 if any(seen.acted or seen.working for seen in progress.values()) else idle + 1
            if idle == 2:
                return
        raise AssertionError("the story does not end")

    def pass_time(self, instant: int) -> None:
        """Make the chain's next block come right after `instant`."""
        while (now := self.node.now()) <= instant:
            self.node.advance_time(instant + 1 - now)

    def pass_challenge_window(self) -> None:
        self.pass_time(self.contract.job(self.job).claim.challenge_deadline)

    @property
    def status(self) -> JobStatus:
        return self.contract.job(self.job).status

    def game(self, game: int = 1) -> GameView:
        return self.contract.game(game)

    def balance(self, name: str) -> int:
        return self.node.balance(self.senders[name].address)

    def gains(self) -> dict[str, int]:
        """Gains and losses of all parties, fees aside. Nothing is left in the contract once all have withdrawn."""
        gains = {name: self.balance(name) + self.senders[name].fees - self.before[name] for name in NAMES}
        return {name: gain for name, gain in gains.items() if gain}

    def shares(self, game: int = 1) -> Shares:
        """The right shares of the bond that was lost in a game."""
        over = self.game(game)
        won = Side.TRAINER if over.outcome is Outcome.TRAINER_WON else Side.CHALLENGER
        bond = over.challenger_bond if won is Side.TRAINER else over.trainer_bond
        gas = min(over.spent[won], bond // 4)
        left = bond - gas
        return Shares(gas=gas, half=left // 2, customer=left // 4)

    def contract_balance(self) -> int:
        """The contract's balance less what it has burnt; nothing once all have withdrawn."""
        return self.node.balance(self.contract.address) - self.contract.burnt()

    def said(self, text: str) -> list[Notice]:
        return [notice for notice in self.notices if text in notice.text]


def ended(role: Role) -> Progress:
    """The last words of a role that is about to leave, which looks more than once before it does."""
    for _ in range(20):
        progress = role.step()
        if progress.finished:
            return progress
        assert progress.acted or progress.working, progress.state
    raise AssertionError(f"the {role.name} does not end: {progress.state}")


def acts(role: Role) -> bool:
    """Whether a role does something, which a slow node may take a while to show."""
    sender = role.context.sender
    assert isinstance(sender, CountingSender)
    paid = sender.fees
    for _ in range(20):
        progress = role.step()
        if progress.acted or sender.fees > paid:
            return True
        if not progress.working:
            return False
    return False


def with_terms(**changes: Any) -> Terms:
    return replace(TERMS, **changes)
