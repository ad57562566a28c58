"""Values that the parts of a step read: the step's inputs, values passed on by stages, and slices on disk, which one
pass keeps for later parts, so that they take no memory in between."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

import torch

from roundlog.execution.batches import LazyBatch, LazyTensors
from roundlog.execution.microbatch.analysis import Analysis
from roundlog.execution.microbatch.slicing import Layout, Samples, sliced_type
from roundlog.operators import Source, StepInputs, operator
from roundlog.operators.registry import integer
from roundlog.program import Node, Program, TensorType, as_array
from roundlog.randomness import uniform


class Scratch:
    """A file of slices without a name, which disappears with the process. Every value is stored sample by sample, so
    that any range of samples is one range of bytes."""

    def __init__(self, directory: Path, values: Mapping[int, tuple[TensorType, Layout]], batch: int) -> None:
        """directory: on a disk, not in memory. Raises OSError."""
        self._values = dict(values)
        self._batch = batch
        self._offsets: dict[int, int] = {}
        self.bytes = 0
        for value, (kind, _) in self._values.items():
            self._offsets[value] = self.bytes
            self.bytes += kind.nbytes
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115  (lives as long as this object)

    def __contains__(self, value: int) -> bool:
        return value in self._values

    def write(self, value: int, first: int, part: torch.Tensor) -> None:
        """Writes the part of a value that samples from `first` on own. Raises OSError."""
        kind, layout = self._values[value]
        unfolded = part.detach().cpu().reshape(layout.unfolded(tuple(part.shape)))
        data = memoryview(as_array(unfolded.movedim(layout.axis + 1, 0)).tobytes())
        at = self._offsets[value] + first * (kind.nbytes // self._batch)
        while len(data):
            written = os.pwrite(self._file.fileno(), data, at)
            data, at = data[written:], at + written

    def read(self, value: int, first: int, last: int, memory: torch.Tensor | None = None) -> torch.Tensor:
        """Reads the part of a value that samples first <= s < last own. memory: a flat tensor of the value's dtype to
        read into. Raises OSError."""
        kind, layout = self._values[value]
        shape = layout.sliced(kind.shape, last - first)
        unfolded = layout.unfolded(shape)
        axis = layout.axis + 1
        if memory is None:
            memory = torch.empty(prod(shape), dtype=kind.dtype.torch_dtype)
        ordered = memory[: prod(shape)].view(unfolded[axis], *unfolded[:axis], *unfolded[axis + 1 :])
        data = as_array(ordered).data.cast("B")
        at = self._offsets[value] + first * (kind.nbytes // self._batch)
        while len(data):
            count = os.preadv(self._file.fileno(), [data], at)
            if not count:
                raise OSError(f"the scratch file ends at byte {at}: has something cut it short?")
            data, at = data[count:], at + count
        return ordered.movedim(0, axis).reshape(shape)


class Values:
    """Values of one running step that outlive the part that computed them."""

    def __init__(self, program: Program, analysis: Analysis, scratch: Scratch, inputs: StepInputs) -> None:
        self._program, self._analysis, self._scratch = program, analysis, scratch
        self._inputs = inputs
        self._whole: dict[int, torch.Tensor] = {}

    @property
    def step(self) -> int:
        return self._inputs.step

    def inputs(self, data: Sequence[torch.Tensor]) -> StepInputs:
        """Inputs of a part: those of the step, with these tensors for its `data` slots."""
        return replace(self._inputs, data=data)

    def keep(self, value: int, samples: Samples | None, tensor: torch.Tensor) -> None:
        """Keeps a value, or (with `samples`) their slice of it. Raises OSError."""
        if samples is None:
            self._whole[value] = tensor
        else:
            self._scratch.write(value, samples[0], tensor)

    def forget(self, values: Iterable[int]) -> None:
        """Drops whole values that no part reads any more."""
        for value in values:
            del self._whole[value]

    def is_to_be_summed(self, value: int) -> bool:
        """Whether a value is a sum taken part by part that no stage has passed on yet."""
        return value in self._analysis.parts and value not in self._whole

    def whole(self, value: int) -> torch.Tensor:
        """A value as a whole, from memory, the step's inputs or the disk. Raises OSError."""
        if value in self._whole:
            return self._whole[value]
        node = self._program.nodes[value]
        op = operator(node.op)
        if isinstance(op, Source):
            return op.load(node.attributes, node.type, self._inputs)
        return self._from_slices(value)

    def _from_slices(self, value: int) -> torch.Tensor:
        """A sliced value as a whole. Raises OSError."""
        return self._scratch.read(value, 0, self._analysis.batch).to(self._inputs.device)

    def terms_reader(self, index: int, parts: Sequence[Samples]) -> Callable[[int], list[torch.Tensor]]:
        """A function that reads the slices of a sum's inputs that the samples of one part own, by the part's number.
        Each call may overwrite the tensors of the one before."""
        node = self._program.nodes[index]
        largest = max(last - first for first, last in parts)
        # All parts are read into the same memory; allocating for each would fragment it.
        inputs = [
            (value, need, self._memory(value, need, largest))
            for value, need in zip(node.inputs, self._analysis.needs[index], strict=True)
            if need is not None
        ]
        return lambda number: [self.slice(value, need, parts[number], memory) for value, need, memory in inputs]

    def _memory(self, value: int, layout: Layout, samples: int) -> torch.Tensor:
        """Flat memory on the CPU for slices of so many samples."""
        kind = sliced_type(self._program.nodes[value].type, layout, samples)
        return torch.empty(kind.numel, dtype=kind.dtype.torch_dtype)

    def slice(self, value: int, layout: Layout, samples: Samples, memory: torch.Tensor | None = None) -> torch.Tensor:
        """The slice of a value that these samples own under `layout`. memory: a flat tensor on the CPU that the slice
        may be written into. Raises OSError."""
        first, last = samples
        if value in self._scratch and layout == self._analysis.layouts[value]:
            return self._scratch.read(value, first, last, memory).to(self._inputs.device)
        found = sliced_source(self._program.nodes[value], layout, samples, self._inputs, memory)
        return layout.part(self.whole(value), first, last) if found is None else found


def sliced_source(
    node: Node, layout: Layout, samples: Samples, inputs: StepInputs, memory: torch.Tensor | None = None
) -> torch.Tensor | None:
    """The slice of a source that these samples own, if it can be had without the whole. memory: as for
    `Values.slice`."""
    first, last = samples
    shape, data = node.type.shape, inputs.data
    if node.op == "data" and layout.axis == 0 and isinstance(data, LazyBatch):
        positions = layout.part(torch.arange(shape[0]), first, last)
        return data.samples(integer(node.attributes, "slot"), positions, memory)
    if node.op == "uniform" and prod(shape[: layout.axis]) * layout.outer == 1:
        stream, inner = integer(node.attributes, "stream"), prod(shape[layout.axis + 1 :])
        sliced = layout.sliced(shape, last - first)
        return uniform(inputs.seed, inputs.step, stream, sliced, first=first * layout.chunk * inner).to(inputs.device)
    return None


class Reads(LazyTensors):
    """The `data` slots of a part. A value is loaded when it is read, since the part may need it late."""

    def __init__(
        self,
        values: Values,
        reads: Sequence[tuple[int, Layout | None]],
        samples: Samples | None,
        summed: Callable[[int], torch.Tensor],
    ) -> None:
        """summed: computes a sum over the batch part by part; called for sums that no stage has computed yet."""
        self._values, self._reads, self._samples, self._summed = values, reads, samples, summed

    def __len__(self) -> int:
        return len(self._reads)

    def tensor(self, slot: int) -> torch.Tensor:
        value, layout = self._reads[slot]
        if layout is None:
            return self._summed(value) if self._values.is_to_be_summed(value) else self._values.whole(value)
        assert self._samples is not None
        return self._values.slice(value, layout, self._samples)
