"""The trainer: executes a job and records every rounding decision."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from roundlog.commitments import MerkleTree
from roundlog.log import LogError, LogHeader, LogWriter
from roundlog.rounding import RecordingRounding, checked_header, payload_format, recorder
from roundlog.training.job import Job
from roundlog.training.options import DEFAULT_OPTIONS, RunOptions
from roundlog.training.run import IntervalHooks, Run
from roundlog.training.run_files import checkpoint_path


def log_header(job: Job, interval: int) -> LogHeader:
    """The prescribed header of the log of one interval."""
    spec = job.spec
    return LogHeader(
        guard=spec.log_guard,
        first_step=interval * spec.interval,
        steps=spec.interval,
        program_root=spec.program_root,
        run_id=spec.run_id,
        kind=payload_format(spec).kind,
    )


def log_path(directory: Path, interval: int) -> Path:
    """Path of one interval's log in a directory of logs."""
    return directory / f"{interval:08d}.rlog"


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The result of a training: the roots that a trainer commits to, and the files that it publishes."""

    checkpoint_root: bytes
    """Merkle root over `state_roots`."""
    state_roots: list[bytes]
    """State root after every interval."""
    final_state: Path
    """The trained state, safetensors."""
    log_dir: Path
    """One log file an interval."""
    log_bytes: int
    mended: list[int] = field(default_factory=list)
    """Intervals of an earlier process that were computed again, because their checkpoint or log was damaged."""
    history_problem: str | None = None
    """Why lines of the run's history are missing, in one clause; None if this process has written all of its own."""


class Trainer:
    """A training of a job in a directory, resumed there after a kill."""

    def __init__(
        self,
        job: Job,
        run_dir: Path,
        options: RunOptions = DEFAULT_OPTIONS,
        *,
        recorder: RecordingRounding | None = None,
    ) -> None:
        """recorder: the rounding, where its policy leaves the trainer a choice; None: as the spec says.

        Raises RunError if the directory holds another job's run, or if the options ask for micro-batches where the log
        decides, ProgramError for more micro-batches than samples, ValueError for a recorder of another policy, or where
        there is no choice."""
        spec, kind = job.spec, payload_format(job.spec).kind
        chosen = recorder is None or (spec.log_decides and recorder.kind == kind)
        if not chosen:
            raise ValueError(f"this recorder is not one of the policy `{spec.policy_name}`: leave it away")
        self.job = job
        self._run = Run(job, run_dir, options, role="trainer")
        self.log_dir = run_dir / "log"
        self._recorder = recorder

    def run(self, *, look_over: bool = False) -> TrainingResult:
        """Trains to the end. look_over: check every checkpoint and log of earlier processes, and compute damaged ones
        again. Missing logs are written again in any case.

        Raises StoppedError, LogError, RunError, OSError."""
        self.log_dir.mkdir(exist_ok=True)
        recording = _Recording(self.job, self.log_dir, self._recorder)
        roots = self._run.run(recording)
        found = recording.resumed_at
        is_damaged = self._is_damaged if look_over else lambda interval: not log_path(self.log_dir, interval).exists()
        mended = []
        if look_over or any(map(is_damaged, range(found))):
            mended = self._run.mend(recording, found, is_damaged)
        files = [log_path(self.log_dir, interval) for interval in range(self.job.spec.intervals)]
        return TrainingResult(
            checkpoint_root=MerkleTree(roots).root,
            state_roots=roots,
            final_state=checkpoint_path(self._run.directory, self.job.spec.steps),
            log_dir=self.log_dir,
            log_bytes=sum(path.stat().st_size for path in files),
            mended=mended,
            history_problem=self._run.history_problem,
        )

    def _is_damaged(self, interval: int) -> bool:
        """Whether the log of an interval is damaged, or has another header than the prescribed one."""
        try:
            return checked_header(log_path(self.log_dir, interval)) != log_header(self.job, interval)
        except LogError:
            return True


class _Recording(IntervalHooks):
    """Hooks of the trainer, which write the log."""

    def __init__(self, job: Job, directory: Path, chosen: RecordingRounding | None) -> None:
        self.job = job
        self.directory = directory
        self._recorder = chosen or recorder(job.spec)
        super().__init__(self._recorder)
        self._writer: LogWriter | None = None
        self.resumed_at = 0
        """Intervals that earlier processes have finished."""

    def resume(self, done: int) -> None:
        self.resumed_at = done

    def begin_interval(self, interval: int) -> None:
        self._writer = LogWriter(
            log_path(self.directory, interval), log_header(self.job, interval), payload_format(self.job.spec)
        )

    def after_step(self, step: int) -> None:
        assert self._writer is not None
        self._recorder.write(self._writer, step)

    def end_interval(self, interval: int) -> None:
        assert self._writer is not None
        self._writer.close()

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.abort()
