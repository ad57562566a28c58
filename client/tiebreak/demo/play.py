"""The whole demo: the problem, three stories, a table.

What takes long to import is imported where it is used, so that the first words are on the screen at once.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tiebreak.demo import contrast
from tiebreak.demo.machines import A, B
from tiebreak.demo.processes import Children
from tiebreak.demo.report import Report, Story
from tiebreak.demo.screen import Screen

if TYPE_CHECKING:
    from tiebreak.demo.scene import Scene

INTERVAL = 5


def play(console: Console, *, steps: int) -> Report:
    """Plays everything. Raises ProcessFailed, and whatever a party in this process raises."""
    report = Report(machines={machine.name: machine.description for machine in (A, B)}, steps=steps, interval=INTERVAL)
    screen = Screen(console)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tiebreak-demo-") as name:
        directory = Path(name)
        _introduce(screen, steps)
        with screen.bars():
            screen.waiting("customer", "capturing the job")
            job_dir = _make_job(directory / "job", steps)
            screen.end_bars("customer")
        screen.heading("The problem: every machine trains to a result of its own")
        with screen.bars(), Children(directory) as children:
            contrast.play(report.contrast, children, screen, job_dir, steps)
        from tiebreak.demo.scene import Scene

        with Scene(directory) as scene:
            _play_stories(scene, screen, report, job_dir)
    report.seconds = time.monotonic() - started
    screen.table(report)
    return report


def _play_stories(scene: Scene, screen: Screen, report: Report, job_dir: Path) -> None:
    from tiebreak.demo import stories
    from tiebreak.demo.stage import Stage

    everyone = [scene.customer, scene.trainer, scene.auditor, scene.referee]
    half = report.steps // 2 + 2
    first = _open(screen, report, "an honest trainer is paid")
    with screen.bars(), Stage(scene, screen, first, everyone) as stage:
        stories.honest(stage, job_dir)
    second = _open(screen, report, "a poisoned batch is found")
    with screen.bars(), Stage(scene, screen, second, everyone) as stage:
        stories.poisoned(stage, job_dir, half, first.root)
    third = _open(screen, report, "false alarms cost money")
    accusers = [scene.liar, scene.silent]
    with screen.bars(), Stage(scene, screen, third, [scene.customer, scene.trainer, *accusers, scene.referee]) as stage:
        stories.false_alarms(stage, job_dir, report.steps // 3 + 1, first.root)


def _open(screen: Screen, report: Report, title: str) -> Story:
    story = Story(number=len(report.stories) + 1, title=title)
    report.stories.append(story)
    screen.heading(f"Story {story.number}: {title}")
    return story


def _introduce(screen: Screen, steps: int) -> None:
    screen.text(
        "The job: a small convolutional net with batch norm learns 1797 handwritten digits, "
        f"{steps} steps, a checkpoint every {INTERVAL}."
    )
    for machine in (A, B):
        screen.text(f"{machine.name[0].upper()}{machine.name[1:]}: {machine.description}.")


def _make_job(directory: Path, steps: int) -> Path:
    from roundlog.examples.digits import digits
    from roundlog.job import Job

    Job.from_task(digits(steps=steps, interval=INTERVAL)).write(directory)
    return directory
