"""The whole demo: the problem, the stories, a table.

Slow imports are made where they are used, so that the first words are on the screen at once.
"""

from __future__ import annotations

import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tiebreak_demo.processes import PATIENCE, A, B, ChildProcesses, Machine
from tiebreak_demo.report import USUAL, Check, Contrast, Report, Story, StoryName
from tiebreak_demo.screen import Screen

if TYPE_CHECKING:
    from tiebreak_demo.scene import Page, Scene

INTERVAL = 5


def play(
    console: Console,
    *,
    steps: int,
    asked: Sequence[StoryName] = USUAL,
    pace: float | None = None,
    page: Page | None = None,
    model: Path | None = None,
) -> Report:
    """Plays what was asked for. pace: as of Scene, None for the usual one. page: shows it meanwhile. model: of the
    story `text`, a folder or a GGUF file; None for one that is found, or made.

    Raises ProcessFailed, and whatever a party in this process raises."""
    machines = {machine.name: machine.description for machine in (A, B)}
    report = Report(machines=machines, steps=steps, interval=INTERVAL, asked=tuple(asked))
    screen = Screen(console)
    started = time.monotonic()
    if page is not None:
        screen.text(f"The page is at {page.url} in some seconds.")
    with tempfile.TemporaryDirectory(prefix="tiebreak-demo-") as name, ExitStack() as scenes:
        directory = Path(name)
        if set(asked) & set(USUAL):
            _play_usual(directory / "digits", screen, report, scenes, pace, page)
        if StoryName.OPERATOR in asked:
            scenes.close()
            _play_disputes(directory / "operator", screen, report, scenes, pace, page)
        if StoryName.MARKET in asked:
            scenes.close()
            _play_market(directory / "market", screen, report, scenes, pace, page)
        if StoryName.TEXT in asked:
            scenes.close()
            _play_text(directory / "text", screen, report, scenes, pace, page, model)
        report.seconds = time.monotonic() - started
        screen.table(report)
        if page is not None:
            page.stay(console)
    return report


def _scene(directory: Path, kind: str, scenes: ExitStack, pace: float | None) -> Scene:
    from tiebreak_demo.scene import PACE, Scene

    directory.mkdir()
    return scenes.enter_context(Scene(directory, kind=kind, pace=PACE if pace is None else pace))


def _play_usual(
    directory: Path, screen: Screen, report: Report, scenes: ExitStack, pace: float | None, page: Page | None
) -> None:
    """The stories about handwritten digits, whose parties are processes."""
    _introduce(screen, report.steps)
    scene = _scene(directory, "embedded", scenes, pace)
    if page is not None:
        rooms = [scene.room(party) for party in (scene.trainer, scene.auditor, scene.liar, scene.silent)]
        page.show(scene, scenes, files=rooms, follow=[scene.room(scene.auditor)])
    with screen.bars():
        screen.waiting("customer", "capturing the job")
        job_dir = _make_job(directory / "job", report.steps)
        screen.end_bars("customer")
    if set(USUAL) <= set(report.asked):
        screen.heading("The problem: every machine trains to a result of its own")
        report.contrast = Contrast()
        with screen.bars(), ChildProcesses(directory) as children:
            play_contrast(report.contrast, children, screen, job_dir, report.steps)
    _play_stories(scene, screen, report, job_dir)


def _play_stories(scene: Scene, screen: Screen, report: Report, job_dir: Path) -> None:
    from tiebreak_demo import stories
    from tiebreak_demo.stage import Stage

    everyone = [scene.customer, scene.trainer, scene.auditor, scene.referee]
    accusers = [scene.customer, scene.trainer, scene.liar, scene.silent, scene.referee]
    right_root = b""
    for name in report.asked:
        if name is StoryName.HONEST:
            story = _open(screen, report, name, "an honest trainer is paid")
            with screen.bars(), Stage(scene, screen, story, everyone) as stage:
                stories.honest(stage, job_dir)
            right_root = story.root
            continue
        if name not in USUAL:
            continue
        right_root = right_root or _right_root(scene, screen, job_dir)
        if name is StoryName.POISONED:
            story = _open(screen, report, name, "a poisoned batch is found")
            with screen.bars(), Stage(scene, screen, story, everyone) as stage:
                stories.poisoned(stage, job_dir, report.steps // 2 + 2, right_root)
        else:
            story = _open(screen, report, name, "false alarms cost money")
            with screen.bars(), Stage(scene, screen, story, accusers) as stage:
                stories.false_alarms(stage, job_dir, report.steps // 3 + 1, right_root)


def _right_root(scene: Scene, screen: Screen, job_dir: Path) -> bytes:
    """The checkpoint root that the first story would have shown."""
    from roundlog.training import Job, Trainer

    with screen.bars():
        screen.waiting("everybody", "training once, honestly")
        return Trainer(Job.read(job_dir), scene.directory / "right").run().checkpoint_root


def _play_disputes(
    directory: Path, screen: Screen, report: Report, scenes: ExitStack, pace: float | None, page: Page | None
) -> None:
    """The story about single operators, whose parties are roles in this process."""
    from tiebreak_demo import disputes

    # Many games: anvil, where it is installed, is faster, and comes to the same in every game.
    scene = _scene(directory, "auto", scenes, pace)
    if page is not None:
        page.show(scene, scenes, files=[], follow=[bench / "audited" for bench in disputes.benches(directory)])
    disputes.play(scene, screen, report)


def _play_market(
    directory: Path, screen: Screen, report: Report, scenes: ExitStack, pace: float | None, page: Page | None
) -> None:
    """The story about paid audits, whose parties are roles in this process."""
    from tiebreak_demo import market

    screen.heading("Audits that pay")
    scene = _scene(directory, "embedded", scenes, pace)
    if page is not None:
        rooms = [scene.room(party) for party in (scene.trainer, scene.auditor, scene.lazy, scene.liar)]
        page.show(scene, scenes, files=rooms, follow=[scene.room(scene.auditor)])
    with screen.bars():
        screen.waiting("customer", "capturing the job")
        job_dir = _make_job(directory / "job", report.steps)
        screen.end_bars("customer")
    market.play(scene, screen, report, job_dir)


def _play_text(
    directory: Path,
    screen: Screen,
    report: Report,
    scenes: ExitStack,
    pace: float | None,
    page: Page | None,
    model: Path | None,
) -> None:
    """The story about the text of a language model, whose parties are processes."""
    from tiebreak_demo import generation_story

    screen.heading("A text with one right answer")
    for machine in (A, B):
        screen.text(f"{machine.name[0].upper()}{machine.name[1:]}: {machine.description}.")
    scene = _scene(directory, "embedded", scenes, pace)
    if page is not None:
        rooms = [scene.room(party) for party in (scene.trainer, scene.auditor)]
        page.show(scene, scenes, files=rooms, follow=[scene.room(scene.auditor)])
    generation_story.play(scene, screen, report, model)


def _open(screen: Screen, report: Report, name: StoryName, title: str) -> Story:
    story = Story(name=name, title=title)
    report.stories.append(story)
    screen.heading(f"Story {len(report.stories)}: {title}")
    return story


def _introduce(screen: Screen, steps: int) -> None:
    screen.text(
        "The job: a small convolutional net with batch norm learns 1797 handwritten digits, "
        f"{steps} steps, a checkpoint every {INTERVAL}."
    )
    for machine in (A, B):
        screen.text(f"{machine.name[0].upper()}{machine.name[1:]}: {machine.description}.")


def _make_job(directory: Path, steps: int) -> Path:
    from roundlog.examples import digits
    from roundlog.training import Job

    Job.from_task(lambda: digits(steps=steps, interval=INTERVAL)).write(directory)
    return directory


def play_contrast(contrast: Contrast, children: ChildProcesses, screen: Screen, job_dir: Path, steps: int) -> None:
    """Trains twice and compares. Raises ProcessFailed."""
    said: dict[str, dict[str, str]] = {A.name: {}, B.name: {}}

    def hear(machine: Machine, line: str) -> None:
        name, _, value = line.partition(" ")
        if name == "step":
            screen.bar(machine.name, "plain training", int(value) + 1, steps)
        else:
            said[machine.name][name] = value
        if name == "trained":
            screen.line(machine.name, f"plain PyTorch trains to {value[:16]}…")

    command = [sys.executable, "-P", "-m", "tiebreak_demo.plain", str(job_dir)]
    for machine in (A, B):
        children.start(machine.name, command, machine.environment(), lambda line, machine=machine: hear(machine, line))  # type: ignore[misc]
        screen.bar(machine.name, "plain training", 0, steps)
    children.listen(lambda: children.ended({A.name, B.name}), patience=PATIENCE)
    contrast.initial = {name: words.get("initial", "") for name, words in said.items()}
    contrast.trained = {name: words.get("trained", "") for name, words in said.items()}
    same_start = "both machines have started from the same parameters"
    contrast.checks = [Check(same_start, contrast.initial[A.name], contrast.initial[B.name])]
    results = len(set(contrast.trained.values()))
    if results == 1 and platform.machine() != "x86_64":
        # The profiles choose kernels of x86-64; elsewhere they may change the number of threads alone.
        screen.line(B.name, "the same: the profiles choose no other kernels on this processor")
    else:
        text = "and have ended in different ones: nobody can audit this by repeating it"
        contrast.checks.append(Check(text, "two results", "two results" if results == 2 else "one result"))
    for check in contrast.checks:
        screen.check(check)
