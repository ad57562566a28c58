"""The whole demo: the problem, the stories, a table.

Slow imports are made where they are used, so that the first words are on the screen at once.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tiebreak_demo.plain import play_contrast
from tiebreak_demo.processes import A, B, ChildProcesses
from tiebreak_demo.report import USUAL, Contrast, Report, StoryName
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
) -> Report:
    """Play what was asked for. pace: as of Scene, None for the usual one. page: shows it meanwhile.

    Raises ProcessFailed, and whatever a party in this process raises."""
    machines = {machine.name: machine.description for machine in (A, B)}
    report = Report(machines=machines, steps=steps, interval=INTERVAL, asked=tuple(asked))
    screen = Screen(console)
    started = time.monotonic()
    if page is not None:
        screen.text(f"The page is at {page.url} in some seconds.")
    with tempfile.TemporaryDirectory(prefix="tiebreak-demo-") as name, ExitStack() as scenes:
        demo = _Demo(Path(name), screen, report, scenes, pace, page)
        if set(asked) & set(USUAL):
            demo.play_usual()
        if StoryName.MARKET in asked:
            demo.play_market()
        report.seconds = time.monotonic() - started
        screen.table(report)
        if page is not None:
            page.stay(console)
    return report


@dataclass
class _Demo:
    """The demo as it is played. Each part has a chain of its own, which ends when the next one begins."""

    directory: Path
    screen: Screen
    report: Report
    scenes: ExitStack
    pace: float | None
    page: Page | None

    def play_usual(self) -> None:
        """Play the stories about handwritten digits, whose parties are processes."""
        from roundlog.training import Job, Trainer

        from tiebreak_demo import stories

        screen, report = self.screen, self.report
        screen.text(
            "The job: a small convolutional net with batch norm learns 1797 handwritten digits, "
            f"{report.steps} steps, a checkpoint every {INTERVAL}."
        )
        for machine in (A, B):
            self.screen.text(f"{machine.name[0].upper()}{machine.name[1:]}: {machine.description}.")
        scene = self._scene("digits", shown=("trainer", "auditor", "liar", "silent"))
        job_dir = self._make_job(scene)
        if set(USUAL) <= set(report.asked):
            screen.heading("The problem: every machine trains to a result of its own")
            report.contrast = Contrast()
            with screen.bars(), ChildProcesses(scene.directory) as children:
                play_contrast(report.contrast, children, screen, job_dir, report.steps)
        right_root = b""
        for name in report.asked:
            if name not in USUAL:
                continue
            if name is StoryName.HONEST:
                spec = stories.usual(scene, name, report.steps)
                right_root = stories.play(scene, screen, report, spec, job_dir, more=stories.expect_same_on_both)
                continue
            if not right_root:
                with screen.bars():
                    screen.bar("everybody", "training once, honestly")
                    right_root = Trainer(Job.read(job_dir), scene.directory / "right").run().checkpoint_root
            spec = stories.usual(scene, name, report.steps)
            stories.play(scene, screen, report, spec, job_dir, right_root=right_root)

    def play_market(self) -> None:
        """Play the story about paid audits, whose parties are roles in this process."""
        from tiebreak_demo import stories

        self.screen.heading("Audits that pay")
        scene = self._scene("market", shown=("trainer", "auditor", "lazy", "liar"))
        stories.play_market(scene, self.screen, self.report, self._make_job(scene))

    def _scene(self, name: str, *, shown: Sequence[str]) -> Scene:
        """Return a new scene in place of the last one. shown: the parties whose files the page shows."""
        from tiebreak_demo.scene import PACE, Scene

        self.scenes.close()
        directory = self.directory / name
        directory.mkdir()
        scene = self.scenes.enter_context(Scene(directory, pace=PACE if self.pace is None else self.pace))
        if self.page is not None:
            self.page.show(scene, self.scenes, files=[scene.room(getattr(scene, party)) for party in shown])
        return scene

    def _make_job(self, scene: Scene) -> Path:
        """Return the directory of a new job about handwritten digits."""
        from roundlog.examples import digits
        from roundlog.training import Job

        with self.screen.bars():
            self.screen.bar("customer", "capturing the job")
            steps = self.report.steps
            Job.from_task(lambda: digits(steps=steps, interval=INTERVAL)).write(scene.directory / "job")
        return scene.directory / "job"
