"""Commands by ranks: what a command does in a process that torchrun has started with others."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from tiebreak.cli import output
from tiebreak.cli.job_files import fetched

if TYPE_CHECKING:
    from roundlog.execution.ranks import Launch, Ranks
    from roundlog.training import Helpers, Job, RunOptions


class RankGroup:
    """This process and the other ranks that execute a job together; or this process alone."""

    def __init__(self, ranks: Ranks | None, launch: Launch | None = None) -> None:
        """launch: of the ranks, if there are some."""
        self._ranks, self._launch = ranks, launch

    @property
    def size(self) -> int:
        """Number of processes."""
        return 1 if self._ranks is None else self._ranks.size

    @property
    def leads(self) -> bool:
        """Whether this process is rank 0, or alone."""
        return self._ranks is None or self._ranks.rank == 0

    def _device(self, chosen: str) -> str:
        """Return the device of this process: of `cuda`, its own card."""
        return chosen if self._launch is None else self._launch.device(chosen)

    def serves(self, job: Job, device: str) -> bool:
        """Return whether this process is not rank 0, and has done its part of the command by now, on this device.

        Raises RankMismatchError if the ranks differ, LaunchError for a job that ranks cannot execute, LostRankError."""
        if self._ranks is None:
            return False
        from roundlog.training import agree, help_rank_0

        agree(self._ranks, job, self._device(device))
        if not self._ranks.rank:
            return False
        help_rank_0(self._ranks, job)
        self._fetched(job)
        return True

    def options(self, chosen: RunOptions) -> RunOptions:
        """Return the options of a run that all ranks execute, once they have agreed."""
        if self._ranks is None:
            return chosen
        from roundlog.training import by_ranks

        return by_ranks(chosen, self._ranks)

    def helps(self, max_memory: int, chosen: RunOptions | None) -> bool:
        """Return whether this process is not rank 0 of a role, and has helped it until its end, on its own device.

        Raises RankMismatchError if the ranks differ, LostRankError."""
        if self._ranks is None:
            return False
        from roundlog.training import JobLimits, agree, help_with_runs

        from tiebreak.process_resources import usable_memory

        agree(self._ranks, None, self._device(str(chosen.device) if chosen else "cpu"))
        if not self._ranks.rank:
            return False
        limits = JobLimits(
            memory_bytes=min(max_memory, usable_memory()), micro_batches=chosen.micro_batches if chosen else 1
        )
        steps = help_with_runs(self._ranks, limits)
        output.warn(f"rank {self._ranks.rank} has helped with {steps} steps")
        return True

    def on_device(self, chosen: RunOptions | None) -> RunOptions | None:
        """Return the options of a role's runs, on the device that this rank has agreed on."""
        return chosen if self._ranks is None or chosen is None else replace(chosen, device=self._ranks.device)

    @contextmanager
    def helpers(self) -> Iterator[Helpers | None]:
        """Give the other ranks to a role for this block, at whose end they end; None if there are none."""
        if self._ranks is None:
            yield None
            return
        from roundlog.training import Helpers

        found = Helpers(self._ranks)
        try:
            yield found
        except BaseException:
            found.leave()
            raise
        found.dismiss()

    def dismiss(self, job: Job) -> int | None:
        """Tell the other ranks that the run has ended. Return how many bytes of its job's data all have fetched; None
        if no rank has them elsewhere."""
        if self._ranks is None:
            return fetched(job)
        from roundlog.execution.ranks import dismiss

        dismiss(self._ranks)
        return self._fetched(job)

    def _fetched(self, job: Job) -> int | None:
        """Return the bytes as `dismiss` does. All ranks call it."""
        assert self._ranks is not None
        own = fetched(job)
        told = self._ranks.numbers(*((0, 0) if own is None else (1, own)))
        return sum(count for _, count in told) if any(is_elsewhere for is_elsewhere, _ in told) else None


@contextmanager
def rank_group() -> Iterator[RankGroup]:
    """Join the processes that execute this command, as the launcher says. Raises LaunchError, LostRankError."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield RankGroup(None)
        return
    from roundlog.execution.ranks import Launch, joined

    launch = Launch.of(os.environ)
    assert launch is not None
    with joined(launch) as ranks:
        yield RankGroup(ranks, launch)


def end_at_once(code: object) -> None:
    """End this process with an exit code if it has left other ranks in the midst of something: threads of PyTorch's
    still wait for them, and would abort it. Return if not."""
    group = sys.modules.get("roundlog.execution.ranks.group")
    if group is not None and group.Ranks.unfinished:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def refuse_ranks(command: str) -> None:
    """Refuse to be one of several processes of a launcher. Raises WrongUsage."""
    if os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ:
        from tiebreak.cli.failures import WrongUsage

        raise WrongUsage(
            f"{command} runs in one process, and torchrun has started several (WORLD_SIZE and RANK are set): start it "
            "alone."
        )
