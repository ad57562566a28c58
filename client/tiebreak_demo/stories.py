"""The stories as data, all but that about single numbers; their player, which starts the parties, as processes or as
roles in this process, passes time, and holds what they gain against what the contract owes them; and the judge who
holds the end of each story, as the chain and the parties' own files have it, against what it has to be."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from roundlog.commitments import MerkleTree, state_root
from roundlog.storage import load_tensors
from roundlog.training import Job
from tiebreak.contract.contract_calls import Shares, fee_share
from tiebreak.contract.enums import JobStatus, Outcome, Phase, Reason, Side
from tiebreak.contract.events import Challenged
from tiebreak.contract.structs import GameView, JobView, Terms
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.customer_role import CustomerRole, post_job
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.notices import plain
from tiebreak.roles.trainer_role import TrainerRole

from tiebreak_demo.adversary.parties import lazy_auditor, lying_auditor, poisoning_trainer
from tiebreak_demo.processes import PATIENCE, ChildProcesses
from tiebreak_demo.report import AccountReport, Check, Report, Story, StoryName
from tiebreak_demo.scene import PACE, TIEBREAK, Party, Scene, transactions
from tiebreak_demo.screen import Screen

_ETHER = 10**18
TERMS = Terms(
    reward=_ETHER,
    trainer_bond=2 * _ETHER,
    challenger_bond=_ETHER,
    commit_window=3600,
    challenge_window=7 * 86400,
    clock_allowance=3600,
    referee_allowance=3600,
    concurrent_games=16,
)
MISBEHAVE = (sys.executable, "-P", "-m", "tiebreak_demo.adversary.process")
"""The command of a dishonest party: KIND JOB STEP."""
_REST = 0.02
"""Seconds between two looks of roles in this process while nobody has anything to do but wait for its own work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedGame:
    """The end that a game has to have. step: found by it; None for a game that ends before. where: the step, in words.
    A challenger whose game ends by TIMEOUT falls silent."""

    challenger: Party
    winner: Side
    reason: Reason = Reason.PROOF
    step: int | None = None
    where: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class StorySpec:
    """A story as data. commands: arguments of `tiebreak`, or `misbehave KIND STEP`, of each party that is a process.
    others: parties besides these. games, attesters: as they have to be in the end."""

    name: StoryName
    title: str
    commands: Mapping[Party, Sequence[str]] = field(default_factory=dict)
    others: Sequence[Party] = ()
    games: Sequence[ExpectedGame] = ()
    attesters: Sequence[Party] = ()
    terms: Terms = TERMS

    @property
    def is_final(self) -> bool:
        """Whether the claim has to become final."""
        return all(game.winner is Side.TRAINER for game in self.games)


class StoryPlayer(ExitStack):
    """The player of one story. Leaving the `with` block ends all of its processes."""

    def __init__(self, scene: Scene, screen: Screen, story: Story, spec: StorySpec) -> None:
        super().__init__()
        self.scene, self.screen, self.story, self.spec = scene, screen, story, spec
        self.job = 0
        self.said: list[str] = []
        """Texts of notices by which parties say what they have computed."""
        parties = dict.fromkeys([scene.customer, scene.trainer, *spec.commands, *spec.others, scene.referee])
        self._before = {party: scene.node.balance(party.address) for party in parties}
        self._first_block = scene.node.head().number
        self._children = self.enter_context(ChildProcesses(scene.directory))
        self._started = time.monotonic()

    @property
    def posted(self) -> JobView:
        """The job as the chain has it now."""
        return self.scene.contract.job(self.job)

    @property
    def model(self) -> Path:
        """The file with the customer's model."""
        return self.scene.directory / f"model-{self.job}.safetensors"

    def games(self) -> dict[int, GameView]:
        """Return the job's games as the chain has them now, by their numbers."""
        contract = self.scene.contract
        return {number: contract.game(number) for number in contract.games_of(self.job)}

    def game_of(self, party: Party) -> GameView:
        """Return the game of a challenger, which has to be there."""
        found = [game for game in self.games().values() if game.challenger == party.address]
        assert found, f"the {party.name} has not challenged"
        return found[0]

    def context(self, party: Party) -> RoleContext:
        """Return the context of a party that is played in this process."""
        return self.scene.context(party, lambda notice: self._told(party, plain(notice)))

    def run_of(self, party: Party, kind: str) -> Path:
        """Return the directory of a party's run in this story: `run` of a trainer, `alone` or `blind` of an auditor."""
        return self.scene.room(party) / f"job-{self.job}-{self.posted.spec_hash.hex()[:16]}" / kind

    def post(self, job_dir: Path) -> None:
        """Post the job, as the customer."""
        self.job = post_job(self.context(self.scene.customer), job_dir, self.spec.terms, self.scene.referee.address)

    def collect(self) -> None:
        """Fetch the model, or the refund, as the customer."""
        CustomerRole(self.context(self.scene.customer), self.job, model=self.model).run()

    # The parties at work.

    def play_processes(self) -> None:
        """Start the parties' processes and let them work until all have ended by themselves; time passes where it has
        to. Raises ProcessFailed."""
        for party, words in self.spec.commands.items():
            manner = ["--dir", str(self.scene.room(party)), "--poll", f"{1000 * self.scene.pace:.0f}ms", "--json"]
            if words[0] == "misbehave":
                command = [*MISBEHAVE, words[1], str(self.job), words[2], *manner]
            else:
                command = [*TIEBREAK, *words, "--job", str(self.job), *manner]
            environment = self.scene.environment(party)
            self._children.start(party.name, command, environment, lambda line, party=party: self._heard(party, line))  # type: ignore[misc]
            self.screen.bar(party.name, "getting ready")
        while not self._children.ended():
            self._children.listen(lambda: self._children.ended() or self._has_to_wait(), patience=PATIENCE)
            if not self._children.ended():
                self._pass_time()

    def play_roles(self, roles: Sequence[JobRole], late: Sequence[JobRole] = ()) -> None:
        """Let roles in this process work until none has anything left to do; time passes where nothing else helps.
        late: those that begin after the first audit of the job has its place."""
        working, idle = list(roles), 0
        while working:
            waiting = () if not late or self.posted.audits.count else late
            progress = {role: role.step() for role in working if role not in waiting}
            for role, seen in progress.items():
                if seen.finished:
                    role.close()
            working = [role for role in working if role in waiting or not progress[role].finished]
            acted = any(seen.acted for seen in progress.values())
            # Twice: a party that only hears that a block has its move has changed what the one before it sees.
            idle = 0 if acted or any(seen.working for seen in progress.values()) else idle + 1
            if working and idle == 2:
                idle = 0
                self._pass_time()
            elif self.scene.pace > PACE:
                time.sleep(self.scene.pace)  # somebody watches
            elif not acted:
                time.sleep(_REST)

    def _wait(self) -> tuple[str, int]:
        """Return the wait that comes next, in words, and its end in the chain's time."""
        job, games = self.posted, self.games().values()
        live = [game for game in games if game.phase not in (Phase.QUEUED, Phase.OVER)]
        if job.status is JobStatus.SEALED:
            return "the time for audits ends, and the trainer may open its claim", job.audits.audit_deadline
        if live:
            return "an hour passes", max(deadline for game in live for deadline in game.deadlines)
        if any(game.phase is Phase.QUEUED for game in games):
            return "the time to open audits ends, and games begin", job.audits.audit_opening_deadline
        if job.status is JobStatus.APPEALABLE:
            return "a week passes, in which nobody appeals", job.audits.appeal_deadline
        return "a week passes, and the window for challenges closes", job.claim.challenge_deadline

    def _pass_time(self) -> None:
        words, instant = self._wait()
        self.screen.meanwhile(words)
        self.scene.pass_time(instant)

    def _has_to_wait(self) -> bool:
        """Return whether no process has a move before time passes: all attesters have ended, and all games are over but
        those of silent challengers, whose clocks run."""
        spec = self.spec
        # The chain is asked last: every look costs milliseconds on cores that train.
        if not spec.is_final or not self._children.ended(party.name for party in spec.attesters):
            return False
        if self.posted.status is not JobStatus.CLAIMED or len(games := self.games().values()) < len(spec.games):
            return False
        silent = {game.challenger.address for game in spec.games if game.reason is Reason.TIMEOUT}
        live = [game for game in games if game.phase is not Phase.OVER]
        waits = all(game.challenger in silent and game.deadlines[Side.CHALLENGER] for game in live)
        return waits and self.scene.node.head().timestamp <= self._wait()[1]

    # Their words.

    def _heard(self, party: Party, line: str) -> None:
        try:
            notice = json.loads(line)
        except ValueError:
            return  # the actor's own libraries may print; nothing depends on it
        if isinstance(notice, dict):
            self._told(party, notice)

    def _told(self, party: Party, notice: dict[str, Any]) -> None:
        what, text = notice.get("what"), str(notice.get("text", "")).replace(f"{self.scene.directory}/", "")
        if what == "step":
            if int(notice["done"]) == 1:
                self.screen.end_bars(party.name)
            self.screen.bar(party.name, text, int(notice["done"]), int(notice["total"]))
            return
        self.screen.end_bars(party.name)
        if what == "sent":
            self.screen.line(party.name, text, note=f"{int(notice['gas']):,} gas", is_move="game" in notice)
        elif what in ("computed", "published", "fetched"):
            self.said.append(text)
            self.screen.line(party.name, text, is_move="game" in notice)

    # The end.

    def expect(self, text: str, expected: Any, observed: Any) -> None:
        """Put down an expectation beside what was observed."""
        check = Check(text, expected, observed)
        self.story.checks.append(check)
        self.screen.check(check)

    def settle(self) -> None:
        """Read the end from the chain, and hold every balance against what the contract owes."""
        scene, story, posted, games = self.scene, self.story, self.posted, self.games()
        story.root, story.verdict = posted.claim.checkpoint_root, posted.status.name
        story.rounds = sum(map(self._moves, games))
        story.log_bytes = sum(path.stat().st_size for path in self.run_of(scene.trainer, "run").glob("log/*.rlog"))
        spent = transactions(scene.node, self._first_block + 1)
        story.gas, story.transactions = sum(one.gas for one in spent), len(spent)
        for party, before in self._before.items():
            fees = sum(one.fee for one in spent if one.sender == party.address)
            story.accounts.append(AccountReport(party.name, before, scene.node.balance(party.address), fees))
        # To the wei: a balance has changed by what the contract moved, less the fees of the party's own transactions.
        owed = self._owed()
        self.expect(
            "every balance has moved as the rules say, to the wei",
            {party.name: owed[party] for party in self._before},
            {account.name: account.moved for account in story.accounts},
        )
        kept = scene.node.balance(scene.contract.address)
        self.expect("the contract keeps what is burnt and nothing else", scene.contract.burnt(), kept)
        story.seconds = time.monotonic() - self._started

    def _owed(self) -> Counter[Party]:
        """Return what the contract has to pay to each party if all games end as expected, net, in wei."""
        scene, spec, terms = self.scene, self.spec, self.spec.terms
        owed = Counter[Party]()
        for expected in spec.games:
            lost = Counter({expected.challenger: terms.challenger_bond})
            winner = scene.trainer
            if expected.winner is Side.CHALLENGER:
                winner = expected.challenger
                lost = Counter({scene.trainer: terms.trainer_bond})
                lost.update(dict.fromkeys(spec.attesters, terms.attestation_bond))
            shares = Shares.of(lost.total(), self.game_of(expected.challenger).spent[expected.winner])
            owed.subtract(lost)
            owed.update({winner: shares.winners, scene.customer: shares.quarter})
        if spec.is_final:
            fees = dict.fromkeys(spec.attesters, fee_share(terms))
            owed.update({scene.trainer: terms.reward, **fees})
            owed[scene.customer] -= terms.reward + sum(fees.values())
        return owed

    def _moves(self, game: int) -> int:
        """Return the number of transactions of a game after its challenge."""
        events = self.scene.contract.events(game=game)
        challenge = {event.transaction for event in events if isinstance(event, Challenged)}
        return len({event.transaction for event in events} - challenge)


MARKET = replace(
    TERMS,
    challenger_bond=_ETHER // 2,
    concurrent_games=1,
    attestations_needed=2,
    audit_window=6 * 3600,
    opening_window=6 * 3600,
    audit_fee=15 * _ETHER // 100,
    attestation_bond=_ETHER // 2,
)
"""Terms of docs/economics.md, "What it comes to in money". One game at a time, so the first to open plays first."""

TRAIN, AUDIT = ("trainer", "run"), ("auditor", "run")
# An audit needs no log; with one that is wrong from some step on, it only takes longer.
AUDIT_WITHOUT_LOG = (*AUDIT, "--no-log")


def usual(scene: Scene, name: StoryName, steps: int) -> StorySpec:
    """Return the spec of a usual story, of a job with so many steps."""
    trainer, auditor = scene.trainer, scene.auditor
    if name is StoryName.HONEST:
        commands = {trainer: TRAIN, auditor: AUDIT}
        return StorySpec(name=name, title="an honest trainer is paid", commands=commands, attesters=[auditor])
    if name is StoryName.POISONED:
        step = steps // 2 + 2
        return StorySpec(
            name=name,
            title="a poisoned batch is found",
            commands={trainer: ("misbehave", "poison", str(step)), auditor: AUDIT_WITHOUT_LOG},
            games=[ExpectedGame(challenger=auditor, winner=Side.CHALLENGER, step=step, where="the poisoned one")],
        )
    liar, silent, step = scene.liar, scene.silent, steps // 3 + 1
    return StorySpec(
        name=name,
        title="false alarms cost money",
        commands={
            scene.trainer: TRAIN,
            liar: ("misbehave", "lie", str(step)),
            silent: ("misbehave", "vanish", str(step)),
        },
        games=[
            ExpectedGame(challenger=liar, winner=Side.TRAINER, step=step, where="where the lie begins"),
            ExpectedGame(challenger=silent, winner=Side.TRAINER, reason=Reason.TIMEOUT),
        ],
    )


def play(
    scene: Scene,
    screen: Screen,
    report: Report,
    spec: StorySpec,
    job_dir: Path,
    *,
    right_root: bytes = b"",
    act: Callable[[StoryPlayer], None] = StoryPlayer.play_processes,
    more: Callable[[StoryPlayer], None] = lambda player: None,
) -> bytes:
    """Play a story, from the posting of the job to the last withdrawal, judge it, and return the claimed checkpoint
    root. right_root: that of an honest run; empty for a story that is to show it. act: lets the parties work. more:
    expectations of this story alone. Raises ProcessFailed."""
    story = Story(name=spec.name, title=spec.title)
    report.stories.append(story)
    screen.heading(f"Story {len(report.stories)}: {spec.title}")
    with screen.bars(), StoryPlayer(scene, screen, story, spec) as player:
        player.post(job_dir)
        act(player)
        player.collect()
        _judge(player, job_dir, right_root)
        more(player)
        player.settle()
    return story.root


def _judge(player: StoryPlayer, job_dir: Path, right_root: bytes) -> None:
    """Hold the end of a story against its spec."""
    spec, expect, job = player.spec, player.expect, player.posted
    root = job.claim.checkpoint_root
    if right_root and spec.is_final:
        expect("the trainer has claimed the right root", right_root, root)
    elif right_root:
        expect("the trainer has claimed another root than the right one", True, root != right_root)
    for expected in spec.games:
        who, game = expected.challenger, player.game_of(expected.challenger)
        if expected.winner is Side.CHALLENGER:
            expect(f"the {who.name} has challenged with the right root", right_root, game.levels[0].roots[1])
        won, text = {
            Side.TRAINER: (Outcome.TRAINER_WON, f"the trainer has won the game against the {who.name}"),
            Side.CHALLENGER: (Outcome.CHALLENGER_WON, f"the {who.name} has won the game"),
        }[expected.winner]
        how = {
            Reason.PROOF: "by what the contract has computed",
            Reason.TIMEOUT: "because the other side's clock ran out",
        }[expected.reason]
        expect(f"{text} {how}", (won.name, expected.reason.name), (game.outcome.name, game.reason.name))
        if expected.step is not None:
            checkpoint, step = (level.index for level in game.levels[:2])
            found = checkpoint * job.spec.training.interval + step
            expect(f"the game has found step {expected.step}, {expected.where}", expected.step, found)
    if spec.attesters:
        names = " and the ".join(party.name for party in spec.attesters)
        verb = "has" if len(spec.attesters) == 1 else "have"
        expect(f"the {names} {verb} attested to the claim", len(spec.attesters), job.attestations)
    status = JobStatus.FINAL if spec.is_final else JobStatus.REJECTED
    expect(f"the claim is {status.name.lower()}", status.name, job.status.name)
    if spec.is_final:
        states = load_tensors(player.model, Job.read(job_dir).program.states)
        expect("the customer has the model that was claimed", job.claim.final_state_root, state_root(states.values()))


def expect_same_on_both(player: StoryPlayer) -> None:
    """Expect of an honest trainer and an auditor on another machine the same checkpoints."""
    trained, audited = (_roots(player, *of) for of in ((player.scene.trainer, "run"), (player.scene.auditor, "alone")))
    root = player.posted.claim.checkpoint_root
    player.expect("machine B has computed the claimed checkpoint root", root, MerkleTree(audited).root)
    player.expect(f"all {len(trained)} checkpoints are the same on both machines, bit for bit", trained, audited)


def _roots(player: StoryPlayer, party: Party, kind: str) -> list[bytes]:
    """Return the state roots that a party has computed."""
    content = (player.run_of(party, kind) / "roots").read_bytes()
    return [content[i : i + 32] for i in range(0, len(content), 32)]


def play_market(scene: Scene, screen: Screen, report: Report, job_dir: Path) -> None:
    """Play the story `market`: a job that pays for blind audits, once with a right claim and once with a wrong one.

    Three auditors seal: one that has repeated the run, one that has copied what the trainer whispered, and one that
    lies. The first has its place before the other two begin, since it takes one as soon as it knows how long its work
    takes. Parties are roles in this process, since the order in which they open their audits decides whose game is
    played first."""
    screen.text(
        "A customer pays 0.15 ether for two audits that are sealed before anybody knows the claim. Three auditors put "
        "0.5 ether on theirs: one has repeated the run, one has copied the trainer's, one lies."
    )
    lie_at, poisoned = report.steps // 3 + 1, report.steps // 2 + 2
    lie = ExpectedGame(challenger=scene.liar, winner=Side.TRAINER, step=lie_at, where="where the lie begins")
    right = StorySpec(
        name=StoryName.MARKET,
        title="a right claim pays audits",
        others=[scene.auditor, scene.lazy, scene.liar],
        games=[lie],
        attesters=[scene.auditor, scene.lazy],
        terms=MARKET,
    )
    verdict = ExpectedGame(challenger=scene.auditor, winner=Side.CHALLENGER, step=poisoned, where="the poisoned one")
    wrong = replace(right, title="a copied root costs a bond", games=[lie, verdict], attesters=[scene.lazy])

    def act(player: StoryPlayer) -> None:
        job, trainer = player.job, player.context(scene.trainer)
        # Both seal wherever there is place, so that each is seen to get what it deserves.
        liar, lazy = (
            replace(one, policy=replace(one.policy, without_fee=True))
            for one in map(player.context, (scene.liar, scene.lazy))
        )
        late = [
            lying_auditor(liar, job, first_wrong_step=lie_at),
            lazy_auditor(lazy, job, whispered=player.run_of(scene.trainer, "run")),
        ]
        first = (
            TrainerRole(trainer, job)
            if player.spec.is_final
            else poisoning_trainer(trainer, job, poisoned_step=poisoned)
        )
        player.play_roles([first, *late, AuditorRole(player.context(scene.auditor), job)], late)

    def more(player: StoryPlayer) -> None:
        root = right_root or player.posted.claim.checkpoint_root
        own = MerkleTree(_roots(player, scene.auditor, "blind")).root
        player.expect("the honest auditor has come to the right root by itself", root, own)
        if player.spec.is_final:
            first = scene.contract.audits_of(player.job)[0].auditor
            player.expect("the honest auditor has the first place", scene.auditor.address, first)
        else:
            player.expect("the verdict is upheld", True, player.posted.audits.lost)

    right_root = b""
    right_root = play(scene, screen, report, right, job_dir, act=act, more=more)
    play(scene, screen, report, wrong, job_dir, right_root=right_root, act=act, more=more)
