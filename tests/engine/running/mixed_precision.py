"""A training in mixed precision, written by hand: BF16 weights and activations, an FP32 master copy and momentum, an
FP16 buffer, and a loss in FP32; of data in BF16."""

from __future__ import annotations

import numpy as np
import torch
from roundlog.commitments import state_root, tensor_root
from roundlog.data import data_tree, fields_of
from roundlog.descriptors import program_root
from roundlog.operators import operator
from roundlog.program import DType, Node, Program, TensorType
from roundlog.spec import POLICY_CERTIFIED, TrainingSpec
from roundlog.training.job import Job

F32, BF16, F16 = DType.F32, DType.BF16, DType.F16
BATCH, WIDE, HIDDEN, OUT = 6, 5, 7, 2


class _Builder:
    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def add(self, op: str, *inputs: int, type: TensorType | None = None, **attributes: object) -> int:
        given = [self.nodes[value].type for value in inputs]
        kind = operator(op).infer(given, attributes, type or TensorType((), F32))  # type: ignore[arg-type]
        self.nodes.append(Node(op, inputs, attributes, kind, f"mixed.py:{len(self.nodes)}"))  # type: ignore[arg-type]
        return len(self.nodes) - 1

    def number(self, value: float, dtype: DType) -> int:
        form = dtype.number_format()
        assert form is not None
        bits = form.of_float32(int(np.float32(value).view(np.uint32)))
        return self.add("constant", type=TensorType((), dtype), bits=(bits,))

    def turned(self, x: int) -> int:
        return self.add("permute", x, dims=(1, 0))


STATES = {
    "parameter/first.weight": TensorType((WIDE, HIDDEN), BF16),
    "parameter/second.weight": TensorType((HIDDEN, OUT), BF16),
    "buffer/mean": TensorType((1, HIDDEN), F16),
    "slot/first.weight/master": TensorType((WIDE, HIDDEN), F32),
    "slot/second.weight/master": TensorType((HIDDEN, OUT), F32),
    "slot/first.weight/momentum": TensorType((WIDE, HIDDEN), F32),
    "slot/second.weight/momentum": TensorType((HIDDEN, OUT), F32),
}


def program() -> Program:
    b = _Builder()
    states = {name: b.add("state", type=kind, slot=slot) for slot, (name, kind) in enumerate(STATES.items())}
    x = b.add("data", type=TensorType((BATCH, WIDE), BF16), slot=0)
    y = b.add("data", type=TensorType((BATCH, OUT), F32), slot=1)
    rate = b.add("schedule", slot=0)
    first, second = states["parameter/first.weight"], states["parameter/second.weight"]
    # The forward pass, in BF16.
    hidden = b.add("tanh", b.add("matmul", x, first))
    found = b.add("to_f32", b.add("matmul", hidden, second))
    # The loss, in FP32.
    error = b.add("sub", found, y)
    total = b.add("sum", b.add("mul", error, error), dims=(0, 1))
    b.add("loss", b.add("reshape", b.add("mul", total, b.number(1 / (BATCH * OUT), F32)), shape=()))
    # The backward pass, in BF16.
    of_found = b.add("to_bf16", b.add("mul", error, b.number(2 / (BATCH * OUT), F32)))
    of_second = b.add("matmul", b.turned(hidden), of_found)
    slope = b.add("sub", b.number(1.0, BF16), b.add("mul", hidden, hidden))
    before = b.add("mul", b.add("matmul", of_found, b.turned(second)), slope)
    of_first = b.add("matmul", b.turned(x), before)
    # A running mean, in FP16.
    summed = b.add("sum", b.add("to_f16", hidden), dims=(0,))
    share = b.add("mul", summed, b.number(0.1 / BATCH, F16))
    stored = {"buffer/mean": b.add("add", b.add("mul", states["buffer/mean"], b.number(0.9, F16)), share)}
    # The update of the FP32 copies; the weights are these, rounded.
    for name, gradient in (("first.weight", of_first), ("second.weight", of_second)):
        kept = b.add("mul", states[f"slot/{name}/momentum"], b.number(0.9, F32))
        momentum = b.add("add", kept, b.add("to_f32", gradient))
        master = b.add("sub", states[f"slot/{name}/master"], b.add("mul", momentum, rate))
        stored |= {f"slot/{name}/momentum": momentum, f"slot/{name}/master": master}
        stored[f"parameter/{name}"] = b.add("to_bf16", master)
    for slot, name in enumerate(STATES):
        b.add("store", stored[name], slot=slot)
    return Program(
        nodes=tuple(b.nodes),
        state_names=tuple(STATES),
        data_names=("x", "y"),
        schedule_names=("0/lr",),
        batch_size=BATCH,
    )


def initial() -> dict[str, torch.Tensor]:
    generator = np.random.default_rng(3)
    made: dict[str, torch.Tensor] = {}
    for name, kind in STATES.items():
        size = 0.5 if name.endswith("master") else 0.0
        made[name] = torch.from_numpy(generator.standard_normal(kind.shape, np.float32)) * size
    for name in ("first.weight", "second.weight"):
        made[f"parameter/{name}"] = made[f"slot/{name}/master"]
    return {name: tensor.to(STATES[name].dtype.torch_dtype) for name, tensor in made.items()}


def job(
    *, steps: int = 12, interval: int = 2, policy: int = POLICY_CERTIFIED, bits: int = 32, rate: float = 0.25
) -> Job:
    x = torch.from_numpy(np.random.default_rng(4).standard_normal((40, WIDE), np.float32)).to(torch.bfloat16)
    y = torch.stack([x.float().sum(1).sin(), x.float()[:, 0]], 1)
    dataset = fields_of({"x": x, "y": y})
    made, states, schedule = program(), initial(), torch.full((steps, 1), rate)
    spec = TrainingSpec(
        steps=steps,
        interval=interval,
        program_root=program_root(made),
        operator_count=len(made.nodes),
        initial_state_root=state_root(states.values()),
        state_count=len(states),
        data_root=data_tree(dataset.values()).root,
        data_rows=40,
        batch_size=BATCH,
        schedule_root=tensor_root(schedule),
        seed=5,
        rounding_policy=policy,
        rounding_bits=bits,
    )
    return Job(program=made, spec=spec, initial=states, schedule=schedule, dataset=dataset)
