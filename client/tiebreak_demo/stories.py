"""The stories as data, all but that about single numbers, and the judge who holds the end of each, as the chain and the
parties' own files have it, against what it has to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from roundlog.commitments import MerkleTree, state_root
from roundlog.storage import load_tensors
from roundlog.training import Job
from tiebreak.contract.enums import Reason, Side
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.trainer_role import TrainerRole

from tiebreak_demo.adversary.parties import lazy_auditor, lying_auditor, poisoning_trainer
from tiebreak_demo.report import Report, Story, StoryName
from tiebreak_demo.scene import Party, Scene
from tiebreak_demo.screen import Screen
from tiebreak_demo.story_player import TERMS, ExpectedGame, StoryPlayer, StorySpec

_ETHER = 10**18
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


def honest(scene: Scene, name: StoryName, title: str, **options: Any) -> StorySpec:
    """Return the spec of an honest trainer and an auditor on another machine. options: more fields of the spec."""
    commands = {scene.trainer: TRAIN, scene.auditor: AUDIT}
    return StorySpec(name=name, title=title, commands=commands, attesters=[scene.auditor], **options)


def dishonest(
    scene: Scene, name: StoryName, title: str, *, kind: str, step: int, where: str, **options: Any
) -> StorySpec:
    """Return the spec of a trainer that misbehaves in one step, which an auditor on another machine finds."""
    commands = {scene.trainer: ("misbehave", kind, str(step)), scene.auditor: AUDIT_WITHOUT_LOG}
    game = ExpectedGame(challenger=scene.auditor, winner=Side.CHALLENGER, step=step, where=where)
    return StorySpec(name=name, title=title, commands=commands, games=[game], **options)


def usual(scene: Scene, name: StoryName, steps: int) -> StorySpec:
    """Return the spec of a usual story, of a job with so many steps."""
    if name is StoryName.HONEST:
        return honest(scene, name, "an honest trainer is paid")
    if name is StoryName.POISONED:
        title, step = "a poisoned batch is found", steps // 2 + 2
        return dishonest(scene, name, title, kind="poison", step=step, where="the poisoned one")
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
    if spec.introduction:
        screen.text(spec.introduction)
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
        who, (_, game) = expected.challenger, player.game_of(expected.challenger)
        if expected.winner is Side.CHALLENGER:
            expect(f"the {who.name} has challenged with the right root", right_root, game.levels[0].roots[1])
        won = {
            Side.TRAINER: f"the trainer has won the game against the {who.name}",
            Side.CHALLENGER: f"the {who.name} has won the game",
        }[expected.winner]
        how = {
            Reason.PROOF: "by what the contract has computed",
            Reason.TIMEOUT: "because the other side's clock ran out",
        }[expected.reason]
        player.expect_end(f"{won} {how}", expected)
        if expected.step is not None:
            checkpoint, step = (level.index for level in game.levels[:2])
            found = checkpoint * job.spec.training.interval + step
            expect(f"the game has found step {expected.step}, {expected.where}", expected.step, found)
    if spec.attesters:
        names = " and the ".join(party.name for party in spec.attesters)
        verb = "has" if len(spec.attesters) == 1 else "have"
        expect(f"the {names} {verb} attested to the claim", len(spec.attesters), job.attestations)
    player.expect_status()
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
