"""Two scenes: an honest trainer challenged by puppets, and an honest challenger in a queue behind puppets."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from eth_typing import ChecksumAddress
from roundlog.capture import Task
from roundlog.training.job import Job
from roundlog.training.trainer import Trainer
from tiebreak.contract.contract_watch import ContractWatch
from tiebreak.contract.enums import JobStatus, Outcome, Phase, Side
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import GameView, Terms
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.customer_role import post_job
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.notices import Notice, What
from tiebreak.roles.player import HEAD_START
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.roles.transaction_queue import TransactionQueue
from tiebreak.rpc.chain_errors import ChainError
from tiebreak.rpc.node import connect
from tiebreak.store import FolderStore
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender
from torch import nn

from floods.puppets import Attacker, Manner, Puppet, puppet_account
from floods.simulated import Chain, Meter, SlowBackgroundJobs

ETHER = 10**18
INTERVAL, STEPS = 8, 1024
REFEREE_ALLOWANCE = 86_400
WINDOW = 7 * 86_400
REWARD, TRAINER_BOND, CHALLENGER_BOND = ETHER, ETHER, ETHER // 4
CONFIRMATIONS = 2
_MOST_IDLE_BLOCKS = 300
_CHALLENGES_BEFORE = 7200
"""Seconds before the end of the window."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """block, clock, replay: seconds a block, of a side's clock, to execute an interval; concurrent: games at a time."""

    block: int
    clock: int
    replay: float
    concurrent: int

    def bound(self, puppets: int) -> int:
        """Seconds by which so many bonds can delay a right verdict (docs/protocol.md)."""
        return (puppets // self.concurrent + 1) * (2 * self.clock + REFEREE_ALLOWANCE)


@dataclass(kw_only=True)
class Flood:
    """The outcome of a scene. Times in seconds, the chain's but for `seconds`; amounts in wei.

    delay: to the right verdict, from the end of the window for challenges, or from the honest challenge. closest: the
    least that an honest clock had left. worked: how long the honest machine has executed steps."""

    scene: str
    manner: str
    puppets: int
    right: bool = False
    honest_loss: int = 0
    games_lost: int = 0
    delay: int = 0
    bound: int = 0
    closest: int = 0
    honest_gas: int = 0
    honest_transactions: int = 0
    attacker_gas: int = 0
    attacker_bonds: int = 0
    most_live: int = 0
    worked: int = 0
    blocks: int = 0
    seconds: float = 0.0
    warnings: dict[str, int] = field(default_factory=dict)
    """The most frequent of the honest role's, with their numbers."""


def small_task(steps: int) -> Task:
    """A classifier of 15 parameters: how long a step takes is simulated."""
    torch.manual_seed(5)
    model = nn.Linear(4, 3)
    return Task(
        model=model,
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch["x"]), batch["y"]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"x": torch.randn(64, 4), "y": torch.randint(0, 3, (64,))},
        batch_size=4,
        steps=steps,
        interval=INTERVAL,
        seed=9,
    )


class Ground:
    """The job and its honest run, which all scenes share."""

    def __init__(self, directory: Path, setting: Setting, steps: int = STEPS) -> None:
        self.directory, self.setting = directory, setting
        Job.from_task(lambda: small_task(steps)).write(directory / "job")
        self.job = Job.read(directory / "job")
        self.run_dir = directory / "right"
        self.roots = list(Trainer(self.job, self.run_dir).run().state_roots)
        operators = [index for index, node in enumerate(self.job.program.nodes) if node.op == "matmul"]
        self.lied = operators[-1]
        """The gradient of the weights."""


class Scene:
    """A chain with the contract and the posted job, moved on block by block, until an end."""

    def __init__(self, ground: Ground, meter: Meter, room: Path) -> None:
        self.ground, self.setting, self.room = ground, ground.setting, room
        self.chain = Chain(self.setting.block)
        self.node = connect(self.chain.url, confirmations=CONFIRMATIONS)
        self.contract = VerificationGame.deploy(Sender(connect(self.chain.url), devnet_account(9)))
        self.background_jobs = SlowBackgroundJobs(self.chain.time, meter, step=self.setting.replay / INTERVAL)
        self.store = FolderStore(room / "store")
        self.warnings: Counter[str] = Counter()
        self.gas: Counter[str] = Counter()
        self.fees: Counter[str] = Counter()
        self.transactions: Counter[str] = Counter()
        self.attacker = Attacker(self.chain, self.contract, ground.job, ground.run_dir, ground.roots, ground.lied)
        self.job = self._post()
        self.chain.by_hand()
        self.games: dict[int, GameView] = {}
        """Games that are not over, the first in the queue in front."""
        self._next_game = 0
        self.lost = 0
        self.finished = False
        """Whether the honest role says that it has nothing left to do."""
        self.most_live = 0
        self.closest = self.setting.clock

    def _post(self) -> int:
        terms = Terms(
            reward=REWARD,
            trainer_bond=TRAINER_BOND,
            challenger_bond=CHALLENGER_BOND,
            commit_window=30 * 86_400,
            challenge_window=WINDOW,
            clock_allowance=self.setting.clock,
            referee_allowance=REFEREE_ALLOWANCE,
            concurrent_games=self.setting.concurrent,
        )
        sender = Sender(connect(self.chain.url), devnet_account(0))
        context = RoleContext(
            contract=VerificationGame(sender.node, self.contract.address, sender),
            sender=sender,
            store=self.store,
            directory=self.room / "customer",
        )
        return post_job(context, self.ground.directory / "job", terms, devnet_account(3).address)

    def context(self, number: int) -> RoleContext:
        """The context of an honest role with the account of this number."""
        directory = self.room / f"account-{number}"
        directory.mkdir()
        sender = Sender(
            self.node, devnet_account(number), directory=directory, clock=self.chain.time, sleep=lambda _: self.mine()
        )

        def queue_in_simulated_time(contract: VerificationGame, sender: Sender) -> TransactionQueue:
            queue = TransactionQueue(contract, sender)
            queue.watch = ContractWatch(contract, clock=self.chain.time)
            return queue

        return RoleContext(
            contract=VerificationGame(self.node, self.contract.address, sender),
            sender=sender,
            store=self.store,
            directory=directory,
            notify=self._heard,
            background_jobs=self.background_jobs,
            clock=self.chain.time,
            make_queue=queue_in_simulated_time,
        )

    def _heard(self, notice: Notice) -> None:
        if notice.what is What.WARNING:
            self.warnings[notice.text[:120]] += 1

    def mine(self, at: float = 0.0) -> None:
        """The next block, and what its transactions have cost."""
        self.chain.mine(at)
        for receipt in self.chain.rpc("eth_getBlockReceipts", "latest"):
            sender, gas = receipt["from"].lower(), int(receipt["gasUsed"], 16)
            self.gas[sender] += gas
            self.fees[sender] += gas * int(receipt["effectiveGasPrice"], 16)
            self.transactions[sender] += 1

    def carry_on(self, role: JobRole, honest: Side, done: Callable[[], bool]) -> None:
        """Lets the role and the attacker act at every block in which anything can happen, until `done`."""
        nothing = 0
        while not done():
            self.background_jobs.work()
            until = None
            try:
                progress = role.step()
                until, self.finished = progress.until, progress.finished
            except (ChainError, OSError) as error:
                self.warnings[str(error)[:120]] += 1
            self.background_jobs.work()
            live = self._look(role, honest)
            again = self.attacker.act(live)
            if self.chain.waiting:
                self.mine()
                nothing = 0
                continue
            if (nothing := nothing + 1) > _MOST_IDLE_BLOCKS:
                raise RuntimeError(f"nothing happens any more: {dict(self.warnings)}")
            instants = [self.background_jobs.next_end(), again, float(until or "inf")]
            overdue = [max(game.deadlines) + 1.0 for game in live.values() if any(game.deadlines)]
            instants += [end + late for end in overdue for late in (0.0, HEAD_START * self.setting.block)]
            now = self.chain.time()
            self.mine(min((instant for instant in instants if now < instant < float("inf")), default=now + 3600))

    def _look(self, role: JobRole, honest: Side) -> dict[int, GameView]:
        """The games that are played now, as the honest side's watch has just read them."""
        watch = role.context.queue.watch
        for number in watch.games_of(self.job):
            if number > self._next_game:
                self.games[number] = watch.game(number)
        self._next_game = max(self.games, default=self._next_game)
        live: dict[int, GameView] = {}
        for number in list(self.games):
            if len(live) == self.setting.concurrent:
                break
            game = watch.game(number)
            if game.phase is Phase.OVER:
                del self.games[number]
                self._count(number, game, honest)
                continue
            self.games[number] = game
            if game.phase is not Phase.QUEUED:
                live[number] = game
                if honest is Side.TRAINER or game.challenger == role.context.address:
                    left = game.deadlines[honest] - int(self.chain.time()) if game.deadlines[honest] else None
                    self.closest = min(self.closest, game.clocks[honest].remaining if left is None else left)
        self.most_live = max(self.most_live, len(live))
        return live

    def _count(self, number: int, game: GameView, honest: Side) -> None:
        wrong = Outcome.CHALLENGER_WON if honest is Side.TRAINER else Outcome.TRAINER_WON
        mine = honest is Side.TRAINER or number not in self.attacker.puppets
        self.lost += mine and game.outcome in (wrong, Outcome.BOTH_LOST, Outcome.UNDECIDED)

    def result(self, flood: Flood, address: ChecksumAddress, gain: int, before: int) -> Flood:
        """gain: what the honest party should have gained at least, fees aside; before: its balance at first."""
        key = address.lower()
        after = self.node.balance(address) + self.contract.credit_of(address) + self.fees[key]
        flood.honest_loss = max(0, before + gain - after)
        flood.games_lost, flood.most_live, flood.closest = self.lost, self.most_live, self.closest
        flood.honest_gas, flood.honest_transactions = self.gas[key], self.transactions[key]
        flood.attacker_gas = sum(self.gas.values()) - self.gas[key]
        flood.worked, flood.blocks = int(self.background_jobs.busy), self.chain.blocks
        flood.warnings = dict(self.warnings.most_common(3))
        return flood


def honest_trainer(ground: Ground, meter: Meter, puppets: int, manners: list[Manner]) -> Flood:
    """An honest trainer, and so many puppets that challenge it as soon as it has committed; they take their manners in
    turn."""
    started = time.monotonic()
    name = " and ".join(manners) if len(manners) < len(Manner) else "all manners"
    flood = Flood(scene="honest trainer", manner=name, puppets=puppets, bound=ground.setting.bound(puppets))
    with tempfile.TemporaryDirectory(dir=ground.directory) as room:
        scene = Scene(ground, meter, Path(room))
        try:
            context = scene.context(1)
            before = scene.node.balance(context.address)
            role = TrainerRole(context, scene.job)
            scene.carry_on(role, Side.TRAINER, lambda: scene.contract.job(scene.job).status is JobStatus.CLAIMED)
            steps = ground.job.spec.steps
            crowd = [
                Puppet(puppet_account(i), manners[i % len(manners)], (i * 997 + 13) % steps) for i in range(puppets)
            ]
            deadline = scene.contract.job(scene.job).claim.challenge_deadline
            # As late as possible: so each of them holds the claim up.
            scene.mine(deadline - _CHALLENGES_BEFORE)
            scene.attacker.challenge(scene.job, crowd, scene.mine)
            scene.carry_on(role, Side.TRAINER, lambda: scene.contract.job(scene.job).status is not JobStatus.CLAIMED)
            status = scene.contract.job(scene.job).status
            flood.right = status is JobStatus.FINAL
            flood.delay = max(0, int(scene.chain.time()) - deadline)
            flood.attacker_bonds = puppets * CHALLENGER_BOND if flood.right else 0
            return scene.result(flood, context.address, REWARD, before)
        finally:
            flood.seconds = time.monotonic() - started
            scene.chain.close()


def honest_challenger(ground: Ground, meter: Meter, puppets: int) -> Flood:
    """A trainer that lies, and so many puppets of its own, which stand in the queue before the one honest challenger;
    they and their trainer use all of their clocks."""
    started = time.monotonic()
    manner = Manner.LAST_MOMENT
    flood = Flood(scene="honest challenger", manner=manner, puppets=puppets, bound=ground.setting.bound(puppets))
    with tempfile.TemporaryDirectory(dir=ground.directory) as room:
        scene = Scene(ground, meter, Path(room))
        try:
            context = scene.context(2)
            before = scene.node.balance(context.address)
            steps = ground.job.spec.steps
            # The lie of the trainer comes last, so that each of its puppets is the one that is wrong, and loses.
            trainer = Puppet(puppet_account(-1 + 10**6), manner, steps - 3)
            scene.attacker.commit(scene.job, trainer, scene.mine)
            crowd = [Puppet(puppet_account(i), manner, (i * 97 + 13) % (steps - 3)) for i in range(puppets)]
            scene.attacker.challenge(scene.job, crowd, scene.mine)
            role = AuditorRole(context, scene.job)
            scene.carry_on(role, Side.CHALLENGER, lambda: scene.contract.game_count() > puppets)
            challenged = int(scene.chain.time())
            scene.carry_on(role, Side.CHALLENGER, lambda: scene.contract.job(scene.job).status is not JobStatus.CLAIMED)
            flood.right = scene.contract.job(scene.job).status is JobStatus.REJECTED
            flood.delay = int(scene.chain.time()) - challenged
            ended = scene.contract.job(scene.job).status
            # The role fetches by itself what is its own.
            scene.carry_on(role, Side.CHALLENGER, lambda: scene.finished)
            assert scene.contract.job(scene.job).status is ended
            flood.attacker_bonds = TRAINER_BOND + puppets * CHALLENGER_BOND
            return scene.result(flood, context.address, 1, before)
        finally:
            flood.seconds = time.monotonic() - started
            scene.chain.close()
