"""Costs of a training step on data-center cards, reckoned on a machine that has none of them.

    .venv-cuda/bin/python scripts/reckon_cards.py [--only gpt12m]

The engine takes a step on tensors of a CUDA device that have no numbers (PyTorch's fake ones). Noted are the kernels,
with the bytes that they read and write, and what the host waits for. A kernel takes as long as the slowest of its
memory traffic, its products, and, if it is Triton's, its instructions, counted in the machine code for the card, at
published rates: no kernel is faster. Nothing is in doubt in such a step, so elements that are come on top: of every
operator with some, a kernel and two or three waits. Two steps, of models with one layer and with two, give all layers'.

Assumed, and not published, is what the host takes: LAUNCH, IN_GRAPH and WAIT.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import bench_engine
import bench_sizes
import torch
import triton.backends.nvidia
from roundlog import Task
from roundlog.definitions.tensor_core import ARITHMETICS
from roundlog.execution import Executor, executor
from roundlog.kernels import cuda
from roundlog.kernels.cuda import bf16_products, integer_products, tensor_cores
from roundlog.kernels.tensor_core_products import GroupArithmetic
from roundlog.operators import StepInputs
from roundlog.operators.contraction import MatMul
from roundlog.operators.job_arithmetic import EXACT
from roundlog.operators.tensor_core_matmul import TensorCoreMatMul
from roundlog.rounding.policies import without_log
from roundlog.training.job import Job
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.cache import get_cache_manager

LAUNCH, IN_GRAPH, WAIT = 5e-6, 1.5e-6, 20e-6
"""Seconds of the host for a kernel, of the device for one in a CUDA graph, and of both for a wait."""
CONVERSIONS, ISSUED = 16, 128
"""Conversions from and to FP64, and all instructions, of a multiprocessor in a cycle (CUDA Programming Guide)."""


@dataclass(frozen=True, slots=True)
class Card:
    """Figures of a data sheet: bytes and operations a second, dense, by tensor cores where there are some. fp64_lanes:
    FP64 instructions of a multiprocessor in a cycle, of which there are `processors`."""

    capability: int
    arithmetic: str
    bandwidth: float
    fp64: float
    fp32: float
    bf16: float
    processors: int
    hertz: float
    fp64_lanes: int


CARDS = {
    "A100": Card(80, "ampere", 2.04e12, 19.5e12, 19.5e12, 312e12, 108, 1.41e9, 32),
    "H100": Card(90, "hopper", 3.35e12, 67e12, 67e12, 989e12, 132, 1.98e9, 64),
    "B200": Card(100, "hopper", 8e12, 40e12, 80e12, 2250e12, 148, 1.965e9, 64),
}
LOOPS: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "_decide": lambda of: of["terms"] / of["deep"],
    "_multiply": lambda of: min(of["terms"], of["of_segment"]) / of["deep"],
    "_measure": lambda of: min(of["terms"], of["of_segment"]) / (of["groups"] * of["group"]),
    "_emulate": lambda of: 0,
}
"""How often a kernel repeats its loop. To integers no element is left."""
VIEWS = "view _unsafe_view detach alias select permute expand slice squeeze unsqueeze empty t transpose as_strided"
NO_KERNELS = frozenset([*VIEWS.split(), "device"])


@cache
def instructions(cubin: Path) -> tuple[Counter[str], Counter[str]]:
    """Instructions of machine code by kind ("all", "fp64", "conversions"): outside of loops, and in them."""
    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "nvdisasm"
    text = subprocess.run([tool, "-c", cubin], capture_output=True, text=True, check=True).stdout
    opcodes, labels, loops, ended = list[str](), dict[str, int](), list[range](), 0
    for line in text.splitlines():
        if label := re.match(r"(\.L\w+):", line):
            labels[label[1]] = len(opcodes)
        elif found := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+)?\s*([A-Z][\w.]*)(.*)", line):
            target = re.search(r"\.L\w+", found[3])
            # Behind the end stand waits that jump back.
            if found[2].startswith("BRA") and target and ended < labels.get(target[0], 0) < len(opcodes):
                loops.append(range(labels[target[0]], len(opcodes) + 1))
            opcodes.append(found[2])
            ended = len(opcodes) if found[2] == "EXIT" and not found[1] else ended
    counts = Counter[str](), Counter[str]()
    for place, one in enumerate(opcodes):
        to = counts[any(place in loop for loop in loops)]
        to["all"] += one != "NOP"
        to["fp64"] += one.startswith(("DADD", "DMUL", "DFMA", "DSETP"))
        to["conversions"] += one.startswith(("F2F", "I2F", "F2I")) and "64" in one
    return counts


class Step(TorchDispatchMode):
    """A step on a card; the driver that Triton asks, too.

    costs: sums by name. "kernels", "waits", "bytes"; seconds: "device" of the kernels alone, "launched" one by one,
    "graphs" in such; "products" of kernels that multiply, "certified" of all that a product of ours runs, "vendor" of
    the same products at the card's rate for their operands' format."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self.card, self.fake, self.costs, self.multiplies = card, FakeTensorMode(), Counter[str](), False
        # What Triton asks its driver for. It keeps what it has compiled by the number of the device.
        self.utils = SimpleNamespace(load_binary=lambda *of_kernel: (1, 1, 0, 0, 1024))
        self.utils.get_device_properties = lambda device: {"max_shared_mem": 1 << 20}
        self.get_current_device, self.get_current_stream = lambda: card.capability, lambda device: 0
        self.get_current_target = lambda: GPUTarget("cuda", card.capability, 32)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, function.overloadpacket.__name__
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        there = any(x.is_cuda for x in given)
        to = torch.device(kwargs.get("device") or ("cuda" if there else "cpu")).type
        self.costs["waits"] += there and (to == "cpu" or name in ("_local_scalar_dense", "nonzero"))
        if not there and to == "cpu":
            return function(*args, **kwargs)
        if name == "_local_scalar_dense":
            return torch.zeros((), dtype=args[0].dtype).item()
        with self.fake:
            if name == "nonzero":
                return torch.empty((0, args[0].ndim), dtype=torch.int64, device="cuda:0")
            found = function(*tree_map_only(torch.Tensor, self._fake, args), **kwargs)
        made = [x for x in tree_leaves(found) if isinstance(x, torch.Tensor)]
        if to == "cpu":
            return torch.zeros(made[0].shape, dtype=made[0].dtype)
        if name not in NO_KERNELS:
            # Ours are of FP64 numbers, which were FP32.
            flops = 2 * args[0].numel() * args[1].shape[-1] if name in ("mm", "bmm") else 0
            self.launched([*given, *made], flops / self.card.fp64, flops / self.card.fp32, 2)
        return found

    def _fake(self, x: torch.Tensor) -> torch.Tensor:
        return x if isinstance(x, FakeTensor) else self.fake.from_tensor(x)

    def launched(self, tensors: list[torch.Tensor], seconds: float, vendor: float, narrower: int = 1) -> None:
        """Note a kernel that computes for so long. vendor: seconds of its products by the vendor, of tensors that take
        so many times fewer bytes; 0 where it has none."""
        traffic = sum(min(x.nbytes, x.untyped_storage().nbytes()) for x in tensors)
        taken = max(traffic / self.card.bandwidth, seconds)
        self.costs.update({"kernels": 1, "bytes": traffic, "device": taken})
        self.costs.update({"launched": max(taken, LAUNCH), "graphs": max(taken, IN_GRAPH)})
        self.costs["certified"] += taken if self.multiplies else 0
        if vendor:
            self.costs.update({"products": taken, "vendor": max(vendor, traffic / narrower / self.card.bandwidth)})

    def multiplying(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            self.multiplies = True
            found = function(*args)
            self.multiplies = False
            return found

        return noted

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        cubin = Path(str(get_cache_manager(metadata.hash).get_file(f"{metadata.name}.cubin")))
        card, lanes = self.card, {"all": ISSUED, "fp64": self.card.fp64_lanes, "conversions": CONVERSIONS}

        def launch(across: int, down: int, deep: int, *rest: Any) -> None:
            of = dict(zip(source.signature, rest[6:], strict=True))
            once, repeated = instructions(cubin)
            times, products = LOOPS[metadata.name](of) if repeated else 0, 0
            if metadata.name in ("_decide", "_multiply"):
                products = 2 * of["batches"] * of["rows"] * of["columns"] * of["terms"] / card.bf16
            cycles = max((once[kind] + times * repeated[kind]) / many for kind, many in lanes.items())
            seconds = across * metadata.num_warps * 32 * cycles / card.processors / card.hertz
            tensors = [x for x in tree_leaves(rest[6:]) if isinstance(x, torch.Tensor)]
            driver.active.launched(tensors, max(seconds, products), products)

        return launch

    @contextmanager
    def believed(self) -> Iterator[None]:
        """Context in which PyTorch and the engine believe that there is this card, and that it has passed its tests."""
        native = tensor_cores.DeviceVerdict(tensor_cores.ProductKernels.NATIVE)
        arithmetic = GroupArithmetic.of(ARITHMETICS[self.card.arithmetic], "bf16")
        torch._C._ensureCUDADeviceGuardSet()
        driver.set_active(self)
        patches: list[tuple[Any, str, Callable[..., Any]]] = [
            (torch.cuda, "_lazy_init", lambda: None),
            *((torch.cuda, name, lambda index: index) for name in ("_exchange_device", "_maybe_exchange_device")),
            (FakeTensor, "data_ptr", lambda tensor: 0),
            (cuda, "has_kernels", lambda device: True),
            (executor, "check_machine", lambda *of_device: None),
            (tensor_cores, "verdict", lambda *of_device: native),
            (bf16_products, "proven", lambda device: arithmetic),
            (integer_products, "by_integers", lambda *of_device: False),  # FP64 is quicker on these
        ]
        for one, name in ((MatMul, "certify"), (MatMul, "certify_short"), (TensorCoreMatMul, "compute")):
            patches.append((one, name, self.multiplying(getattr(one, name))))
        with ExitStack() as stack:
            for owner, name, answer in patches:
                stack.enter_context(mock.patch.object(owner, name, answer))
            yield


def costs(job: Job, card: Card) -> Counter[str]:
    """Those of a step, by name (`Step`)."""
    step, device, slots = Step(card), torch.device("cuda", 0), len(job.initial)
    kinds = [(tuple(x.shape), x.dtype) for x in (job.schedule[0], *job.initial.values())]
    kinds += [(one.type.shape, one.type.dtype.torch_dtype) for one in job.program.nodes if one.op == "data"]
    with step.fake:
        schedule, *rest = (torch.empty(shape, dtype=dtype, device=device) for shape, dtype in kinds)
    of_step = {"states": rest[:slots], "data": rest[slots:], "schedule": schedule, "seed": 1, "step": 0}
    with step.believed(), step:
        Executor(job.program).run(StepInputs(**of_step, device=device), without_log(job.spec))
    return step.costs


def task(model: str, precision: str, layers: int) -> Task:
    """A model of `bench_engine.py` or, by a size's name, `bench_sizes.py`, with so many layers."""
    if model in bench_engine.MODELS:
        fewer = {name: partial(getattr(bench_engine, name), layers=layers) for name in ("GPT", "gpt2")}
        with mock.patch.multiple(bench_engine, **fewer):
            made: Task = bench_engine.task_of(model, 1, precision)
            return made
    size = replace(bench_sizes.SIZES[model], layers=layers)
    with tempfile.TemporaryDirectory() as room, mock.patch.dict(bench_sizes.SIZES, {model: size}):
        bench_sizes.write_weights(size, Path(room))
        made = bench_sizes.task(model, 1, Path(room))
        return made


ROWS = [
    *product([("gpt12m", 6), ("gpt2", 12)], ("fp32", "bf16", "bf16, tensor cores")),
    *product([("1.2 billion, LoRA, 1 x 1024", 16)], ("bf16", "bf16, tensor cores")),
]
COLUMNS = "kernels, waits, GB, ms alone, launched, in graphs, of waits, products / vendor's, with checks"


@cache
def job_of(model: str, precision: str, layers: int, arithmetic: str) -> Job:
    made = partial(task, model, precision.partition(",")[0], layers)
    return Job.from_task(made, arithmetic=arithmetic, compare=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="models whose names have this in them")
    only = parser.parse_args().only
    print(f"| {', '.join(CARDS)} | {COLUMNS.replace(', ', ' | ')} |\n{'|---' * 10}|")
    for (model, layers), precision in ROWS:
        of_cards = []
        for card in CARDS.values() if only in model else ():
            arithmetic = card.arithmetic if "cores" in precision else EXACT
            one, two = (costs(job_of(model, precision, few, arithmetic), card) for few in (1, 2))
            of = {key: one[key] + (layers - 1) * (two[key] - one[key]) for key in two}
            ms = (f"{1e3 * x:.1f}" for x in (of["device"], of["launched"], of["graphs"], of["waits"] * WAIT))
            shares = (f"{of['vendor'] / of[key]:.2f}" for key in ("products", "certified"))
            of_cards.append([f"{of['kernels']:,}", f"{of['waits']:,}", f"{of['bytes'] / 1e9:.1f}", *ms, *shares])
        if of_cards:
            cells = ("; ".join(some[:1] if len(set(some)) == 1 else some) for some in zip(*of_cards, strict=True))
            print(f"| {model}, {precision} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
