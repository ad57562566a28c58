"""Random training scripts: small modules with writes through views, aliases, hooks, closures, Python state and
checkpointing, with one optimizer or two in turn. The generator knows nothing of capture; what it writes is ordinary
PyTorch."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from roundlog.capture import Task, portable

from tests.fuzz import training_statements as statements_of

_KINDS = [
    *(statements_of.PLAIN, statements_of.WRITES, statements_of.WRITES, statements_of.STATE, statements_of.REACH),
    *(statements_of.OUT, statements_of.LAZY, statements_of.SIGNALS, statements_of.QUANTIZED, statements_of.KNOWN),
    *(statements_of.TYPES, statements_of.DRAWS),
]


@dataclass(frozen=True)
class Training:
    """A training script and what its task is made of."""

    source: str
    is_portable: bool = False
    """Whether its task is made under `portable`."""
    is_short: bool = False
    """Whether its model runs under autocast in BF16."""

    def task(self) -> Task:
        """A fresh task: nothing of it is shared with former ones."""
        torch.manual_seed(0)
        space: dict[str, Any] = {}
        exec(compile(self.source, "script.py", "exec"), space)
        with portable() if self.is_portable else nullcontext():
            model, loss, optimizer, options = space["make"]()
        torch.manual_seed(1)
        return Task(
            model=model,
            loss=loss,
            optimizer=optimizer,
            dataset={"x": torch.randn(12, 6)},
            batch_size=4,
            steps=3,
            interval=1,
            seed=5,
            **options,
        )


_OPTIMIZERS = [
    "torch.optim.SGD(weights_of(model), lr=0.1)",
    "torch.optim.SGD(weights_of(model), lr=0.05, momentum=0.9, weight_decay=0.01)",
    "torch.optim.AdamW(weights_of(model), lr=0.01, eps=1e-3)",
    "torch.optim.Adam(weights_of(model), lr=0.01, eps=1e-3, weight_decay=0.1)",
]
_OPTIONS = [
    *("{}", "{}", "{'micro_batches': 2}", "{'max_grad_norm': 0.1}", "{'schedule': lambda s: 0.5**s}"),
    "{'schedule': torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}",
]
_OPTIONS_IN_TURN = [
    *("{}", "{}", "{'micro_batches': 2}", "{'max_grad_norm': [0.1, None]}", "{'schedule': lambda s: 0.5**s}"),
    "{'schedule': [torch.optim.lr_scheduler.StepLR(judging, 1, 0.5), lambda s: 1.0]}",
]


def random_training(seed: int, is_short: bool = False) -> Training:
    """The script with this number. is_short: its model runs under autocast in BF16."""
    rng = Random(seed)
    statements = [rng.choice(statements_of.PLAIN)]
    for _ in range(rng.randint(1, 5)):
        statements.append(_statement(rng))
    if rng.random() < 0.1:  # which is refused
        statements.insert(rng.randint(0, len(statements)), _branch(rng, 2))
    init = rng.sample(statements_of.INIT, rng.choice([0, 0, 1, 2]))
    is_portable = rng.random() < 0.25
    if is_portable:
        init += rng.sample(statements_of.MADE, 2)
    if rng.random() < 0.1:
        layer = str(rng.randrange(3))
        init.append(rng.choice(statements_of.NORMED).replace("{i}", layer))
        statements.append(rng.choice(statements_of.TWICE).replace("{i}", layer))
    body = "\n".join(_filled(statement, rng) for statement in statements)
    init += [line for named, line in statements_of.NEEDED.items() if named in body]
    in_turn = rng.random() < 0.2
    optimizers = [f"    optimizer = {rng.choice(_OPTIMIZERS)}"]
    losses = [_function("loss", rng.choice(statements_of.LOSSES))]
    options = rng.choice(_OPTIONS)
    if in_turn:
        init.append("self.judge = nn.Linear(6, 1)")
        optimizers = [
            f"    judging = {rng.choice(_OPTIMIZERS).replace('weights_of(model)', 'model.judge.parameters()')}",
            f"    training = {rng.choice(_OPTIMIZERS).replace('weights_of(model)', 'judged(model)')}",
            "    optimizer = [judging, training]",
        ]
        losses = [
            _function("of_judge", rng.choice(statements_of.JUDGING)),
            _function("of_judged", rng.choice(statements_of.JUDGED)),
            "    loss = [of_judge, of_judged]",
        ]
        options = rng.choice(_OPTIONS_IN_TURN)
    hook = rng.choice([""] * 12 + ["optimizer.register_step_pre_hook(lambda o, a, k: clamp_all(o))"])
    if in_turn:
        hook = hook.replace("optimizer", "training")
    autocast = '    @torch.autocast("cpu", dtype=torch.bfloat16)\n' if is_short else ""
    source = f"""{statements_of.HEAD}
def clamp_gradient(parameter):
    parameter.grad.clamp_(-0.01, 0.01)


def clamp_all(optimizer):
    for parameter in optimizer.param_groups[0]["params"]:
        if parameter.grad is not None:
            parameter.grad.clamp_(-0.01, 0.01)


def weights_of(model):
    return [p for p in model.parameters() if p.requires_grad]


def judged(model):
    own = set(model.judge.parameters())
    return [p for p in weights_of(model) if p not in own]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l0, self.l1, self.l2 = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.w = nn.Parameter(torch.randn(6, 6) * 0.3)
        self.gain = nn.Parameter(torch.ones(6))
        self.frozen = nn.Parameter(torch.randn(6, 6) * 0.3, requires_grad=False)
        self.drop = nn.Dropout(0.4)
        self.register_buffer("buf", torch.zeros(6))
        self.register_buffer("steps", torch.tensor(0))
        self.a, self.n, self.cache, self.first, self.last = torch.zeros(6), 0, None, None, None
        self.kept, self.list = {{"h": torch.zeros(4 // PARTS, 6)}}, [torch.zeros(4 // PARTS, 6)]
{_indented(init, 8)}
        self.refs, self.alias, self.alias_t = [self.w], self.w.data, self.w.data.t()
        w = self.w
        self.get = lambda x: x @ w

    def block(self, h):
        return torch.sigmoid(self.l0(h)) * self.gain

{autocast}    def forward(self, x):
        h = self.l0(x)
{_indented([body], 8)}
        return h{".float()" if is_short else ""}


def make():
    model = Net()
    weights = list(model.parameters())[:2]
    teacher = [p.detach().clone() for p in weights]
    seen, moving = [], torch.zeros(())

{chr(10).join(losses)}
{chr(10).join(optimizers)}
    {hook}
    return model, loss, optimizer, {options}
"""
    return Training(source.replace("PARTS", "2" if "micro_batches" in options else "1"), is_portable, is_short)


def _function(name: str, body: str) -> str:
    """A loss."""
    return f"    def {name}(model, batch):\n{_indented([body], 8)}\n"


def _statement(rng: Random) -> str:
    return rng.choice(rng.choice(_KINDS))


def _branch(rng: Random, depth: int) -> str:
    """An if by values, in which there may be others."""
    if rng.random() < 0.1:
        return statements_of.NEVER
    condition = rng.choice(statements_of.CONDITIONS)
    lines = [f"if {condition}:", _indented([_inside(rng, depth)], 4)]
    if rng.random() < 0.5:
        lines += ["else:", _indented([_inside(rng, depth)], 4)]
    if rng.random() < 0.2:
        lines += [f"if {condition}:", _indented([_inside(rng, 0)], 4)]
    return "\n".join(lines)


def _inside(rng: Random, depth: int) -> str:
    statements = [_statement(rng) for _ in range(rng.randint(1, 2))]
    if depth and rng.random() < 0.4:
        statements.append(_branch(rng, depth - 1))
    return "\n".join(statements)


def _filled(statement: str, rng: Random) -> str:
    numbers = {
        "i": rng.randrange(3),
        "d": rng.randrange(2),
        "d1": rng.randrange(2),
        "k": rng.randrange(3),
        "n": rng.randint(1, 3),
    }
    for name, number in numbers.items():
        statement = statement.replace("{" + name + "}", str(number))
    return statement


def _indented(statements: list[str], depth: int) -> str:
    lines = [line for statement in statements for line in statement.splitlines()]
    return "\n".join(" " * depth + line for line in lines)
