"""A job as files: program, spec, initial state, schedule and data. A customer publishes them by content address;
readers trust none of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from warnings import warn
from weakref import WeakValueDictionary

import torch

from roundlog.commitments import CommitmentError, MerkleTree, state_root, tensor_root
from roundlog.data import (
    BlockCache,
    Elsewhere,
    Field,
    RemoteFile,
    data_tree,
    is_unchanged,
    read_block_roots,
    read_fields,
    remote_fields,
    summarised,
    write_block_roots,
    write_fields,
)
from roundlog.data.spill_file import SpilledTensors, SpillFile
from roundlog.descriptors import program_root
from roundlog.execution.batches import CPU, Batches, TensorsOf
from roundlog.execution.microbatch import samples_of
from roundlog.kernels.scratch import give_back
from roundlog.number_format import FLOAT32, narrow_float32
from roundlog.operators import StepInputs, check, check_narrow, operator
from roundlog.operators.job_arithmetic import EXACT, arithmetic_of, check_arithmetic, with_arithmetic
from roundlog.program import DType, Program, ProgramError, TensorType, from_json, to_json
from roundlog.program.program_text import MAX_ELEMENTS, MAX_TEXT_BYTES
from roundlog.spec import MAX_JSON_BYTES, POLICY_CERTIFIED, SpecError, TrainingSpec, check_rounding
from roundlog.storage import (
    StorageError,
    StoredTensors,
    load_tensors,
    open_regular,
    replace_file,
    save_state,
    save_tensors,
)
from roundlog.training.run_cost import run_bytes

if TYPE_CHECKING:
    from roundlog.capture import MakeTask
    from roundlog.training.sameness import Sameness

PROGRAM, SPEC, INITIAL, SCHEDULE, DATA, BLOCKS = JOB_FILES = (
    "program.json",
    "spec.json",
    "initial.safetensors",
    "schedule.safetensors",
    "data.safetensors",
    "data.blocks",
)
CACHE = "data.cache"
"""Name of the file beside a job's, where the data lie elsewhere, that keeps blocks of them."""

CAPTURES, HASHES, COMPARES = JOB_STAGES = ("captures a step", "hashes state and data", "compares steps")
"""Stages of `Job.from_task`, one after the other."""


class StoredState(Mapping[str, torch.Tensor]):
    """A state in a file, by name, in program order. A tensor that is in use is given again, so that it is in memory
    once, however many states of a run have it; any other is read, and has the root that it had when the state was made:
    a write to the file in the meantime is found."""

    def __init__(self, stored: StoredTensors) -> None:
        """Reads every tensor once. Raises StorageError, and CommitmentError for a tensor that has no root."""
        self._stored = stored
        self._roots = {name: tensor_root(tensor) for name, tensor in stored.items()}
        self._in_use: WeakValueDictionary[str, torch.Tensor] = WeakValueDictionary()

    @property
    def root(self) -> bytes:
        """The state root."""
        return MerkleTree(list(self._roots.values())).root

    def __getitem__(self, name: str) -> torch.Tensor:
        """Raises StorageError if it cannot be read, or has changed."""
        if (in_use := self._in_use.get(name)) is not None:
            return in_use
        tensor = self._stored[name]
        if tensor_root(tensor) != self._roots[name]:
            raise StorageError(self._stored.path, f"tensor {name!r} has changed since its root was taken: restore it")
        self._in_use[name] = tensor
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


class JobError(ValueError):
    """A job that is damaged, inconsistent or larger than allowed."""


class UnfitJobError(JobError):
    """A job that is undamaged but cannot be run, here or anywhere; the message says what to change."""


class TooLargeJobError(UnfitJobError):
    """An undamaged job that needs more memory than its reader allows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobLimits:
    """Most resources that a reader spends on a job that it does not trust."""

    memory_bytes: int = 16 << 30
    """State (what a step changes twice: before and after), data, and the peak of one step."""
    micro_batches: int = 1
    """Parts into which an auditor will cut every batch; at most as many as there are samples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A training job: program, spec, initial state, schedule and data."""

    program: Program
    spec: TrainingSpec
    initial: Mapping[str, torch.Tensor]
    """State before step 0, by name, in program order; of a job that was read, left in its file."""
    schedule: torch.Tensor
    """f32[steps, columns]."""
    dataset: dict[str, Field]
    """Fields by name, in program order; in memory, or in a file if they are large (`roundlog.data.HELD_BYTES`), or
    elsewhere (`roundlog.data.RemoteField`)."""

    def rates(self) -> dict[str, torch.Tensor]:
        """The learning rates of every group of parameters: f32[steps] by the name of the column, as `0/lr`."""
        names = self.program.schedule_names
        return {name: self.schedule[:, slot] for slot, name in enumerate(names) if name.endswith("/lr")}

    @property
    def arithmetic(self) -> str:
        """Name of the arithmetic of its products of BF16 and FP16 matrices."""
        return arithmetic_of(self.program)

    @staticmethod
    def from_task(
        make_task: MakeTask,
        *,
        policy: int = POLICY_CERTIFIED,
        bits: int = FLOAT32.width,
        arithmetic: str = EXACT,
        report: Callable[[Sameness], None] | None = None,
        tell: Callable[[str, float, str], None] = lambda stage, share, detail: None,
        planned: Callable[[Job], None] = lambda job: None,
        compare: bool = True,
    ) -> Job:
        """Make a job from a function that makes a task: capture a step, compare it with the task's own, and commit to
        everything in a spec. make_task: called several times, each from the same states of the generators of random
        numbers; its tasks are equal. policy, bits: the spec's rounding_policy and rounding_bits. arithmetic: of
        products of BF16 and FP16 matrices, EXACT or a name of docs/arithmetic.md. report: called with the result of the
        comparison, whose warning is one of Python's otherwise. tell: called with one of `JOB_STAGES`, the share of it
        that is done, and what is done there now. compare: False to see what a job would be, in a fraction of the time;
        it is not to be used, since nothing says that its program is the task's step.

        Raises CaptureError, DefectError where capture fails though it should not, JobError for an initial state or
        schedule that is not finite, ProgramError for an operator that cannot be rounded to so few bits or an arithmetic
        that no product of the task has, and, before any work, SpecError for an unknown policy or width, ProgramError
        for an unknown arithmetic."""
        # Only a customer captures. Every other command would load torch.export for nothing: a fifth of its start.
        from roundlog.capture import capture, paused, raising_defects
        from roundlog.training.sameness import confirm_same

        check_rounding(policy, bits)
        check_arithmetic(arithmetic)
        with raising_defects():
            captured = capture(make_task, lambda share: tell(CAPTURES, share, ""))
        task = captured.task
        program = with_arithmetic(captured.program, arithmetic)
        check_narrow(program, [operator(node.op) for node in program.nodes], narrow_float32(bits))
        _require_sizes(program, task.rows)
        dataset = task.fields()
        _require_numbers(captured.program, captured.states, captured.schedule, dataset)
        tell(HASHES, 0.0, "")
        spec = TrainingSpec(
            steps=task.steps,
            interval=task.interval,
            program_root=program_root(program),
            operator_count=len(program.nodes),
            initial_state_root=state_root(captured.states.values()),
            state_count=len(captured.states),
            data_root=data_tree(dataset.values()).root,
            data_rows=task.rows,
            batch_size=task.batch_size,
            schedule_root=tensor_root(captured.schedule),
            seed=task.seed,
            rounding_policy=policy,
            rounding_bits=bits,
        )
        spec.validate()
        moved, file = program.moved_states, SpillFile("the initial state")
        states = {name: file.kept(x) if name in moved else x for name, x in captured.states.items()}
        captured = replace(captured, states=SpilledTensors(states))
        job = Job(program=program, spec=spec, initial=captured.states, schedule=captured.schedule, dataset=dataset)
        with paused():
            planned(job)
        if compare:
            with paused(), raising_defects():
                sameness = confirm_same(captured, lambda share, detail: tell(COMPARES, share, detail))
            if report is not None:
                report(sameness)
            elif sameness.warning:
                warn(sameness.warning, stacklevel=2)
        # Models and optimizers refer to themselves, and so do the copies of them that were compared: a run in this
        # process would begin with these in memory.
        gc.collect()
        give_back()
        # Until here frozen states lie in the task's own memory.
        states = {name: file.kept(x) if isinstance(x, torch.Tensor) else x for name, x in states.items()}
        return replace(job, initial=SpilledTensors(states))

    def write(self, directory: Path) -> None:
        """Writes the six files into a directory, which is created if missing. Raises OSError, StorageError, and as
        `require_data`."""
        self.write_all_but_data(directory)
        write_fields(directory / DATA, self.dataset)

    def write_all_but_data(self, directory: Path) -> None:
        """Writes the files that are not `DATA`, as `write`."""
        self.require_data()
        directory.mkdir(parents=True, exist_ok=True)
        with replace_file(directory / PROGRAM) as file:
            file.write(to_json(self.program))
        save_state(directory / INITIAL, self.program.states, TensorsOf(self.initial))
        save_tensors(directory / SCHEDULE, {"schedule": self.schedule})
        write_block_roots(directory / BLOCKS, self.dataset)
        with replace_file(directory / SPEC) as file:
            file.write(self.spec.to_json().encode())

    def require_data(self) -> None:
        """Raises JobError if data in memory are no longer those that the spec commits to: a task's tensors are not
        copied, and may have been written to since."""
        for name, field in self.dataset.items():
            if not is_unchanged(field):
                raise JobError(
                    f"the data field {name} has changed in memory since the job was made of it: make the job again"
                )

    def inputs(
        self, batches: Batches, step: int, states: Sequence[torch.Tensor], device: torch.device = CPU
    ) -> StepInputs:
        """The inputs of a step, which determine its result. states: before the step, on the device."""
        return StepInputs(
            states=states,
            data=batches.load(step, device),
            schedule=self.schedule[step].to(device),
            seed=self.spec.seed,
            step=step,
            device=device,
        )

    @staticmethod
    def read(directory: Path, limits: JobLimits | None = None, *, elsewhere: Elsewhere | None = None) -> Job:
        """Reads a job that is not trusted. Every size is checked against program, spec and limits before anything is
        allocated, and every root against the spec. Raises JobError, whose message is one sentence.

        elsewhere: the file of the data, which need not be in the directory then. Of it the blocks are fetched that are
        used, and kept in a cache in the directory; NaN is looked for in those only."""
        try:
            return _read(directory, limits or JobLimits(), elsewhere)
        except (SpecError, ProgramError, CommitmentError) as error:
            raise JobError(f"the job in {directory} is not valid: {error}") from error
        except StorageError as error:
            raise JobError(f"the job cannot be read: {error}") from error


def read_program(directory: Path) -> tuple[Program, TrainingSpec]:
    """The program and the spec of a job, checked against each other; neither data nor states are read. Raises as
    `Job.read`."""
    try:
        return _read_program(directory)
    except (SpecError, ProgramError, CommitmentError) as error:
        raise JobError(f"the job in {directory} is not valid: {error}") from error


def _read_program(directory: Path) -> tuple[Program, TrainingSpec]:
    spec = TrainingSpec.from_json(_text(directory / SPEC, MAX_JSON_BYTES))
    program = from_json(_text(directory / PROGRAM, MAX_TEXT_BYTES))
    if len(program.state_names) != spec.state_count or program.batch_size != spec.batch_size:
        raise JobError(f"the program in {directory} has other states or another batch size than its spec")
    check(program)
    # Only a program that passed the registry's check has descriptors, and so a root.
    if len(program.nodes) != spec.operator_count or program_root(program) != spec.program_root:
        raise JobError(f"the program in {directory} is not the one that its spec commits to")
    check_narrow(program, [operator(node.op) for node in program.nodes], spec.f32_format)
    _require_sizes(program, spec.data_rows)
    return program, spec


def _read(directory: Path, limits: JobLimits, elsewhere: Elsewhere | None) -> Job:
    program, spec = _read_program(directory)
    schedule_types = {"schedule": TensorType((spec.steps, len(program.schedule_names)), DType.F32)}
    require_memory(program, spec, limits)
    stored = StoredTensors(directory / INITIAL, program.states)
    schedule = load_tensors(directory / SCHEDULE, schedule_types)["schedule"]
    dataset = _read_data(directory, program, spec, elsewhere)
    # This comes first, because a NaN with other bits has no root.
    _require_numbers(program, stored, schedule, dataset)
    initial = StoredState(stored)
    for what, root, committed in (
        ("initial state", initial.root, spec.initial_state_root),
        ("schedule", tensor_root(schedule), spec.schedule_root),
        ("dataset", data_tree(dataset.values()).root, spec.data_root),
    ):
        if root != committed:
            raise JobError(f"the {what} in {directory} is not the one that its spec commits to")
    if elsewhere is None:
        # Nothing is read by them here, but readers without the data will need them.
        read_block_roots(directory / BLOCKS, program.fields, spec.data_rows, spec.data_root)
    return Job(program=program, spec=spec, initial=initial, schedule=schedule, dataset=dataset)


def _read_data(directory: Path, program: Program, spec: TrainingSpec, elsewhere: Elsewhere | None) -> dict[str, Field]:
    kinds, rows = program.fields, spec.data_rows
    if elsewhere is None:
        return read_fields(directory / DATA, kinds, rows)
    trees = read_block_roots(directory / BLOCKS, kinds, rows, spec.data_root)
    return remote_fields(kinds, rows, trees, RemoteFile(directory / DATA, elsewhere, BlockCache(directory / CACHE)))


def _require_sizes(program: Program, rows: int) -> None:
    """Raises UnfitJobError for a field of data with more elements than a contract can address."""
    for name, kind in program.fields.items():
        if kind.elements(rows) > MAX_ELEMENTS:
            raise UnfitJobError(
                f"the data field {name} has {kind.elements(rows)} elements, more than the 2^40 that a field may have: "
                "leave rows out, or divide its rows among several fields"
            )


def _require_numbers(
    program: Program, initial: Mapping[str, torch.Tensor], schedule: torch.Tensor, dataset: dict[str, Field]
) -> None:
    """Raises JobError for NaN anywhere, and for an infinity in the schedule or in a state slot that the step changes. A
    slot that keeps its value, such as a causal mask, may hold infinities."""
    kept = {node.attributes["slot"] for index, node in enumerate(program.nodes) if program.keeps_slot(index)}
    for slot, (name, tensor) in enumerate(initial.items()):
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            if bool(tensor.isnan().any()):
                raise UnfitJobError(f"{name} starts with NaN: no run can follow such a job, start from numbers")
            if slot not in kept:
                raise UnfitJobError(
                    f"{name} starts with a number that is not finite, and is updated: no run can follow such a job, "
                    "start from finite numbers"
                )
    if not bool(schedule.isfinite().all()):
        raise UnfitJobError(
            "schedule has a number that is not finite: no run can follow such a job, give finite learning rates"
        )
    for name, field in dataset.items():
        if summarised(field).has_nan:
            raise UnfitJobError(f"the data field {name} has a NaN: leave such rows out, or put a number in its place")


def require_memory(program: Program, spec: TrainingSpec, limits: JobLimits) -> None:
    """Raises TooLargeJobError for a job that needs more memory than its reader allows."""
    need = run_bytes(program, spec, min(limits.micro_batches, samples_of(program)))
    if need > limits.memory_bytes:
        raise TooLargeJobError(
            f"the job needs up to {need} bytes of memory, more than the {limits.memory_bytes} allowed: raise the "
            "limit, audit in more micro-batches, or leave the job to someone else"
        )


def _text(path: Path, limit: int) -> bytes:
    try:
        with open_regular(path) as file:
            text = file.read(limit + 1)
    except OSError as error:
        raise JobError(f"{path} cannot be read: {error.strerror}") from error
    if len(text) > limit:
        raise JobError(f"{path} has more than the {limit} bytes that are read")
    return text
