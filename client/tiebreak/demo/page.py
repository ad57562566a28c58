"""The page beside the demo: `tiebreak dashboard` as a process of its own, which shows stories as they are played."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from tiebreak.child_environment import environment_of_others
from tiebreak.dashboard.server import listen
from tiebreak.demo.processes import ChildProcesses
from tiebreak.demo.scene import Scene


class Page:
    """A page that stays at one address, whichever chain is played on."""

    def __init__(self, port: int) -> None:
        """port: 0 for any. Raises ServerError if it is taken."""
        with listen("127.0.0.1", port) as found:
            self.port: int = found.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def show(self, scene: Scene, until: ExitStack, *, files: Sequence[Path], follow: Sequence[Path]) -> None:
        """Shows a chain until the stack is closed. files, follow: directories as of `tiebreak dashboard`."""
        words = [sys.executable, "-P", "-m", "tiebreak.cli.app", "dashboard", "--port", str(self.port)]
        for option, directories in (("--files", files), ("--follow", follow)):
            for directory in directories:
                directory.mkdir(parents=True, exist_ok=True)
                words += [option, str(directory)]
        children = until.enter_context(ChildProcesses(scene.directory))
        children.start("page", words, environment_of_others() | scene.whereabouts(), lambda line: None)

    def stay(self, console: Console) -> None:
        """Lets the page be looked at until Ctrl-C; not where nobody could press it."""
        if not console.is_terminal:
            return
        console.print(f"\nThe page is still at {self.url} (Ctrl-C ends it).", soft_wrap=True)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return
