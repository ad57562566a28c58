"""A run: executes a job from checkpoint to checkpoint, in a directory from which a killed process is resumed.

    run.json                   which job this is, and how often checkpoints are kept
    roots                      32 bytes an interval: the state root at its end, appended and fsynced
    roots.sums                 32 bytes an interval: SHA-256 of the run, the interval and that root, likewise
    checkpoints/00000005.safetensors    of the state after that many steps, what steps change; after the last, all of it
    history.jsonl              loss and seconds of every step (roundlog.training.run_files); no result depends on it

A root is recorded only after everything else of its interval is on disk. A run resumes at the newest kept checkpoint
whose root is the recorded one, and computes everything after it again. A damaged older checkpoint is not used;
`Run.mend` computes it again. A recorded root that fails its sum is taken from the checkpoint of its interval. If that
is not kept, the root and all that follow are computed again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import torch

from roundlog.arithmetic import retry_disturbed
from roundlog.execution import StepExecutor, StoppedError, micro_batches_of
from roundlog.execution.batches import TensorsOf, root_of
from roundlog.operators import StepInputs
from roundlog.program import first_store
from roundlog.rounding import Rounding
from roundlog.rounding.policies import without_log
from roundlog.storage import (
    StorageError,
    append_file,
    lock_file,
    read_hashes,
    read_record,
    require_regular,
    sync_directory,
    sync_file,
    write_record,
)
from roundlog.training.fabricated_values import FabricatedValues, Stop, note_stop, state_after_stop
from roundlog.training.job import Job
from roundlog.training.options import DEFAULT_OPTIONS, RunOptions, StepEvent
from roundlog.training.run_files import History, load_kept, save_checkpoint, wrong_checkpoint

_MEND_RECORD = (
    "if this is your own run of this job, remove that file and run the same command again, and nothing is lost; or "
    "choose an empty directory"
)


class RunError(RuntimeError):
    """The run directory, or an option of the run, cannot be used."""


def root_sum(run_id: bytes, interval: int, root: bytes) -> bytes:
    """The checksum of a recorded root in `roots.sums`: 32 bytes."""
    return sha256(run_id + interval.to_bytes(8, "big") + root).digest()


class IntervalHooks:
    """Hooks of a role in a run: its rounding, and its work before and after intervals and steps: none, here."""

    def __init__(self, rounding: Rounding) -> None:
        self.rounding = rounding

    def resume(self, done: int) -> None:
        """Called once, before all other hooks, with the directory locked: the run resumes after `done` intervals."""

    def begin_interval(self, interval: int) -> None: ...

    def before_step(self, step: int) -> None: ...

    def after_step(self, step: int) -> None: ...

    def end_interval(self, interval: int) -> None:
        """Called after an interval. When it returns, all that the role keeps of the interval is on disk."""

    def abandon(self) -> None:
        """Called when an error ends the run: closes open files."""


class Run:
    """One job in one directory, on one device."""

    def __init__(
        self, job: Job, directory: Path, options: RunOptions = DEFAULT_OPTIONS, *, role: str | None = None
    ) -> None:
        """role: the role that runs ("trainer", "auditor"); a run of another role cannot be resumed. None only reads a
        run, or replays from it. A run directory is a party's own and never fetched from others.

        Raises RunError if the directory holds another job's run or the options do not fit the job, ProgramError if a
        batch has fewer samples than micro-batches, JobError as `Job.require_data`."""
        if options.keep_every < 1:
            raise RunError(f"keep_every is {options.keep_every}: keep a checkpoint every 1 or more intervals")
        if options.micro_batches != 1 and job.spec.log_decides:
            raise RunError(
                f"this job rounds by the policy `{job.spec.policy_name}`, under which a sum depends on how it is cut: "
                "run it without micro-batches"
            )
        if role is not None:
            job.require_data()
        self.job = job
        self.directory = directory
        self.options = options
        self.device = usable(options.device)
        self.stopped: StoppedError | None = None
        """The first stop after which this process continued; None if there was none."""
        self.history_problem: str | None = None
        """Reason why history lines are missing, in one clause; None if this process has written all of its own."""
        self._history: History | None = None
        micro_batches_of(job.program, options.micro_batches)
        self._bind(role)
        self._execution = options.execution(job, options.micro_batches, directory)

    @property
    def executor(self) -> StepExecutor:
        """The executor of the steps."""
        return self._execution.executor

    def _bind(self, role: str | None) -> None:
        (self.directory / "checkpoints").mkdir(parents=True, exist_ok=True)
        path = self.directory / "run.json"
        run_id = self.job.spec.run_id.hex()
        # The only state that is kept whole, where steps leave some tensors as they are.
        is_partial = len(self.job.program.moved_states) < len(self.job.program.states)
        whole = {"whole_after": self.job.spec.steps} if is_partial else {}
        if not path.exists():
            # A reader leaves the directory free for any role.
            if role is not None:
                write_record(path, {"role": role, "run_id": run_id, **whole})
            return
        try:
            record = read_record(path)
        except StorageError as error:
            raise RunError(f"{error}: {_MEND_RECORD}") from error
        wanted = {"run_id": run_id, **whole}
        if not isinstance(record, dict) or any(record.get(key) != value for key, value in wanted.items()):
            raise RunError(f"{path} names the run of another job, or is damaged, or too old: {_MEND_RECORD}")
        if role is not None and record.get("role") != role:
            raise RunError(f"{path} names another role's run of this job, or is damaged: choose an empty directory")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        path = self.directory / "run.lock"
        try:
            lock = lock_file(path)
        except BlockingIOError:
            raise RunError(f"{self.directory} is in use by another process: wait for it to end") from None
        with lock:
            require_regular(lock.fileno(), path)
            yield

    @contextmanager
    def locked_record(self) -> Iterator[Callable[[Sequence[bytes]], None]]:
        """Context in which no other process uses the directory. It gives a function that records the state roots of
        intervals which others have executed. Raises RunError if the directory is in use."""
        with self._locked():
            yield self._record

    def newest(self, intervals: int) -> tuple[int, Sequence[torch.Tensor]]:
        """(intervals done, the state after them) of the newest kept checkpoint after at most `intervals` intervals
        whose state has the recorded root; of the initial state, which is read as it is used, if there is none."""
        recorded = self._read("roots")
        for done in range(min(intervals, len(recorded)), 0, -1):
            kept = self._kept(done)
            if kept is not None and kept[1] == recorded[done - 1]:
                return done, kept[0]
        return 0, TensorsOf(self.job.initial)

    def recorded_roots(self) -> list[bytes]:
        """State roots on record, up to the first that is torn, or that is damaged and has no checkpoint to take it
        from."""
        roots = self._read("roots")
        sums = self._read("roots.sums")
        sums += [b""] * (len(roots) - len(sums))
        for interval, (root, recorded) in enumerate(zip(roots, sums, strict=False)):
            if self._sum(interval, root) == recorded:
                continue
            kept = self._kept(interval + 1)
            # The checkpoint's root is right if it equals the recorded root, or fits the recorded sum.
            if kept is None or (kept[1] != root and self._sum(interval, kept[1]) != recorded):
                return roots[:interval]
            roots[interval] = kept[1]
        return roots

    def _sum(self, interval: int, root: bytes) -> bytes:
        return root_sum(self.job.spec.run_id, interval, root)

    def _record(self, roots: Sequence[bytes]) -> None:
        _keep(self.directory / "roots.sums", [self._sum(interval, root) for interval, root in enumerate(roots)])
        _keep(self.directory / "roots", roots)

    def _kept(self, done: int) -> tuple[list[torch.Tensor], bytes] | None:
        """(state, its root) after `done` intervals; None if it is not kept or cannot be read."""
        states, root, why = load_kept(self.directory, self.job, done * self.job.spec.interval)
        return None if why else (states, root)

    def _read(self, name: str) -> list[bytes]:
        """Items of a record with 32 bytes an interval."""
        return read_hashes(self.directory / name, self.job.spec.intervals)

    def run(self, hooks: IntervalHooks) -> list[bytes]:
        """Executes all remaining intervals and returns all state roots. Raises StoppedError, RunError, OSError."""
        spec = self.job.spec
        with self._locked():
            roots = self.recorded_roots()
            self._record(roots)
            done, states = self.newest(len(roots))
            del roots[done:]
            hooks.resume(done)
            if self.options.on_resume is not None:
                self.options.on_resume(done * spec.interval)
            self._history = History(self.directory, self.job, done * spec.interval)
            try:
                self._record(roots)
                held = [self._on_device(states)]
                del states
                for interval in range(done, spec.intervals):
                    held.append(self._interval(interval, held, hooks))
                    root = root_of(held[0])
                    if (interval + 1) % self.options.keep_every == 0 or interval + 1 == spec.intervals:
                        save_checkpoint(self.directory, self.job, (interval + 1) * spec.interval, held[0])
                    roots.append(root)
                    # A root that an error has torn is left out when the record is read.
                    append_file(self.directory / "roots.sums", self._sum(interval, root))
                    append_file(self.directory / "roots", root)
                self._validate(spec.steps, held[0])
            except BaseException:
                hooks.abandon()
                raise
            finally:
                self._history.close()
                self.history_problem = self._history.problem
                self._history = None
        return roots

    def mend(self, hooks: IntervalHooks, intervals: int, is_damaged: Callable[[int], bool]) -> list[int]:
        """Computes damaged intervals among the first `intervals` of a finished run again, and returns their numbers. An
        interval is damaged if its checkpoint is, or `is_damaged` says so. Raises RunError if another root comes out,
        and as `run`.
        """
        mended: list[int] = []
        with self._locked():
            roots = self.recorded_roots()
            for interval in range(min(intervals, len(roots))):
                steps = (interval + 1) * self.job.spec.interval
                torn = wrong_checkpoint(self.directory, self.job, steps, roots[interval]) is not None
                if not torn and not is_damaged(interval):
                    continue
                done, states = self.newest(interval)
                held = [self._on_device(states)]
                del states
                for again in range(done, interval + 1):
                    try:
                        held.append(self._interval(again, held, hooks))
                    except BaseException:
                        hooks.abandon()
                        raise
                    if (root := root_of(held[0])) != roots[again]:
                        raise RunError(
                            f"interval {again} comes to the root 0x{root.hex()} now, and came to "
                            f"0x{roots[again].hex()} when it was recorded in {self.directory}: check this machine, and "
                            "choose an empty directory"
                        )
                if torn:
                    save_checkpoint(self.directory, self.job, steps, held[0])
                mended.append(interval)
        return mended

    def _on_device(self, states: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return states if self.device.type == "cpu" else [tensor.to(self.device) for tensor in states]

    def _interval(
        self, interval: int, held: list[Sequence[torch.Tensor]], hooks: IntervalHooks
    ) -> Sequence[torch.Tensor]:
        """The state after one interval. held: the state before it, which is taken out: the caller would keep it in
        memory beside those before and after a step."""
        states = held.pop()
        hooks.begin_interval(interval)
        first = interval * self.job.spec.interval
        for step in range(first, first + self.job.spec.interval):
            hooks.before_step(step)
            self._validate(step, states)
            states = self.step(step, states, hooks.rounding)
            hooks.after_step(step)
        hooks.end_interval(interval)
        return states

    def _validate(self, step: int, states: Sequence[torch.Tensor]) -> None:
        """Records the loss on the validation set before a step, where the options ask for it there."""
        validation = self.options.validation
        if self._history is None or validation is None or not validation.is_due(step):
            return
        if self._history.lacks_validation(step):
            started = time.perf_counter()
            loss = validation.loss(step, states, self.device)
            self._history.add_validation(step, loss, time.perf_counter() - started)

    def inputs(self, step: int, states: Sequence[torch.Tensor]) -> StepInputs:
        """The inputs of a step, which determine its result. states: before the step, on the run's device."""
        return self.job.inputs(self._execution.batches, step, states, self.device)

    def step(self, step: int, states: Sequence[torch.Tensor], rounding: Rounding) -> Sequence[torch.Tensor]:
        """The state after one step."""
        started = time.perf_counter()
        inputs = self.inputs(step, states)
        try:
            result = retry_disturbed(lambda: self.executor.run(inputs, rounding), rounding.start_again)
            after, loss = result.states, result.loss
        except StoppedError as error:
            if not self.options.continue_after_stop:
                raise
            self.stopped = self.stopped or error
            note_stop(self.directory, step, Stop(error.operator, error.element))
            after, loss = self._beyond(inputs, error), math.nan
        seconds = time.perf_counter() - started
        if self._history is not None:
            self._history.add_step(step, loss, seconds)
        if self.options.on_step is not None:
            self.options.on_step(StepEvent(step, loss, seconds))
        return after

    def replay(self, first: int, states: Sequence[torch.Tensor]) -> Iterator[tuple[int, list[torch.Tensor]]]:
        """(step, state after it) of every step from `first` to the end of the run. states: before step `first`. Where
        the log decides, states are those of this machine without a log."""
        rounding = without_log(self.job.spec)
        after: Sequence[torch.Tensor] = [tensor.to(self.device) for tensor in states]
        del states  # two states are in memory, before and after a step, where the caller keeps the newest one alone
        for step in range(first, self.job.spec.steps):
            after = self.step(step, after, rounding)
            yield step, list(after)

    def _beyond(self, inputs: StepInputs, error: StoppedError) -> list[torch.Tensor]:
        """The fabricated state after a step that stops."""
        program, f32_format = self.job.program, self.job.spec.f32_format
        stores: dict[int, torch.Tensor] = {}
        if error.operator > first_store(program):
            # The step is executed again to observe the values that it stored before it stopped.
            with suppress(StoppedError):
                self.executor.run(inputs, without_log(self.job.spec), observe=stores.__setitem__)
        fabricated = FabricatedValues(self.directory)
        states = state_after_stop(program, f32_format, inputs.step, stores, error, fabricated)
        return [state.to(self.device) for state in states]


def usable(device: torch.device | str) -> torch.device:
    """The device, after a try that it holds numbers. Raises RunError."""
    try:
        found = torch.device(device)
        torch.zeros(1, device=found).item()
    except (RuntimeError, AssertionError) as error:
        # PyTorch has several messages, some of them pages long, for a device that it was built without.
        reason = str(error).strip().partition("\n")[0][:200]
        raise RunError(
            f"the device {str(device)[:40]!r} cannot be used ({reason}): choose another, cpu is here"
        ) from error
    return found


def _keep(path: Path, items: Sequence[bytes]) -> None:
    """Overwrites a record with these items. In place, since most are there already: those stay right at every instant,
    and no full disk keeps a run from starting."""
    with path.open("r+b" if path.exists() else "wb") as file:
        require_regular(file.fileno(), path)
        file.write(b"".join(items))
        file.truncate()
        sync_file(file)
    sync_directory(path.parent)
