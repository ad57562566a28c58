"""Random steps that decide by their values, and their training by a program and by plain PyTorch, which knows nothing
of paths. What decides is far from what it is compared with, so that no rounding decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from roundlog.capture import Captured, Task, capture
from roundlog.capture.draws import Replay
from roundlog.capture.tracing.eager import EagerTraining, plainly
from roundlog.execution import Executor
from roundlog.operators import StepInputs
from roundlog.randomness import batch_rows
from roundlog.rounding import Recorder
from torch import Tensor, nn

Forward = Callable[["Net", Tensor], Tensor]

STEPS = 10


class Net(nn.Module):
    """Three layers, one with running statistics, and a buffer."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.a, self.b, self.norm = nn.Linear(6, 6), nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.register_buffer("kept", torch.ones(6))
        self.how = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self, x)


def task_of(forward: Forward, loss: Callable[[Any, Any], Tensor] | None = None, **more: Any) -> Task:
    """forward: from f32[8, 6] to any shape. The rows have means between -1 and 1."""
    model = Net(forward)
    torch.manual_seed(11)
    optimizer = more.pop("optimizer", lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1))
    return Task(
        model=model,
        loss=loss or (lambda m, b: m(b["x"]).square().mean()),
        optimizer=optimizer(model.parameters()),
        dataset={"x": torch.randn(32, 6) + torch.randn(32, 1)},
        **{"batch_size": 8, "steps": STEPS, "interval": 1, "seed": 3, **more},
    )


@dataclass(frozen=True)
class Trained:
    """A training both ways."""

    captured: Captured
    apart: float
    """Largest relative difference of a loss or a state."""
    answers: Counter[tuple[int, bool]]
    """(operator, value) of the conditions that decided -> number of steps."""

    @property
    def decided_both_ways(self) -> bool:
        return any((operator, not truth) in self.answers for operator, truth in self.answers)


def trained_both_ways(make: Callable[[], Task], steps: int = STEPS) -> Trained:
    """make: gives the same task every time, of which nothing is shared."""
    task, theirs = make(), make()
    captured = capture(task)
    chosen = {node.inputs[0] for node in captured.program.nodes if node.op == "where"}
    conditions = {index for index in chosen if not captured.program.nodes[index].type.shape}
    executor, states, training = Executor(captured.program), list(captured.states.values()), EagerTraining(theirs)
    apart, answers = 0.0, Counter()
    for step in range(steps):
        kept: dict[int, Tensor] = {}
        batch = task.batch(torch.from_numpy(batch_rows(task.seed, step, task.batch_size, task.rows)))
        inputs = StepInputs(
            states=states,
            data=list(batch.values()),
            schedule=captured.schedule[step],
            seed=task.seed,
            step=step,
            device=torch.device("cpu"),
        )
        result = executor.run(inputs, Recorder(4), observe=lambda i, x, kept=kept: kept.update({i: x.clone()}))
        states = list(result.states)
        answers.update((index, bool(kept[index])) for index in conditions)
        with plainly(), Replay(captured.origin.drawn(kept)):
            loss = training.step(step, batch)
        apart = max(apart, abs(result.loss - loss) / (abs(loss) + 1e-3))
        named = {**dict(theirs.model.named_parameters()), **dict(theirs.model.named_buffers())}
        for name, state in zip(captured.states, states, strict=True):
            own = named.get(name.partition("/")[2])
            if own is not None and not name.startswith("slot/"):
                difference = (state.double() - own.detach().double()).abs().max()
                apart = max(apart, float(difference / (own.detach().double().abs().max() + 1e-2)))
    return Trained(captured, apart, answers)


_CONDITIONS = (
    "x.mean() > {t}",
    "torch.rand(()) < 0.5",
    "random.random() < 0.4",
    "(x[:4].sum() < x[4:].sum()).item()",
    "x.amax().item() > 2 + {t}",
    "not torch.all(x.mean(1) < 1)",
    "net.kept.mean() > 1.02",
    "max(x.mean().item(), {t}) > {t}",
    "np.random.randint(0, 3) == 1",
)
_STATEMENTS = (
    "h = torch.tanh(net.a(h))",
    "h = net.b(h) + x",
    "h = net.norm(h)",
    "net.kept.mul_(1.01)",
    "with torch.no_grad():\n    net.kept.copy_(0.9 * net.kept + 0.1 * h.mean(0).abs())",
    "h = h * net.kept.clone()",
    "h = torch.nn.functional.dropout(h, 0.3)",
    "h = h.flip(-1)",
    "h = h + 0.1 * torch.randn(6)",
    "h = h.clone()\nh[:, 0].mul_(0.5)",
)
_NEVER = (
    "if x.abs().max() > 1e3:\n    h = (h / 0 - torch.log(-h.abs())) * float('inf')\n    net.kept.add_(float('nan'))"
)


def random_source(seed: int) -> str:
    """The source of a function `forward(net, x)`, in which ifs stand in ifs."""
    rng = Random(seed)
    statements = [rng.choice(_STATEMENTS), _branch(rng, 2), rng.choice([_NEVER, rng.choice(_STATEMENTS)])]
    rng.shuffle(statements)
    return f"def forward(net, x):\n    h = net.a(x)\n{_indented(statements)}\n    return h"


def _branch(rng: Random, depth: int) -> str:
    condition = rng.choice(_CONDITIONS).replace("{t}", rng.choice(["0.0", "0.2", "-0.1"]))
    bodies = []
    for _ in range(2):
        body = rng.sample(_STATEMENTS, rng.randint(1, 2))
        bodies.append(_indented([*body, *([_branch(rng, depth - 1)] if depth and rng.random() < 0.4 else [])]))
    lines = [f"if {condition}:", bodies[0]]
    lines += ["else:", bodies[1]] if rng.random() < 0.6 else []
    return "\n".join(lines)


def _indented(statements: list[str]) -> str:
    return "\n".join("    " + line for statement in statements for line in statement.splitlines())


def asserted(condition: object) -> None:
    """An assert as Python has it: those of test modules are pytest's, which look at the text of what failed."""
    assert condition
