"""Writes docs/how-to/scripts.md from the scripts in tests/scripts, which the tests run.

python scripts/make_script_docs.py          writes the page
python scripts/make_script_docs.py --check  exits with 1 if the page on disk is not what would be written
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path

from generated import write_or_check

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "how-to" / "scripts.md"
CORPUS = ROOT / "tests" / "scripts"

INTRODUCTION = """# From your script to a job

Written by `scripts/make_script_docs.py` from the scripts in `tests/scripts`. Tests run every one of them: those that
are captured train to the losses of plain PyTorch (three steps, within 1e-6), and to one root on two kinds of
processor; those that are refused are so in the sentence that stands here, and the script that does the same instead
is itself among them.

Find the shape of script that you have: {sections}. Of {count} scripts {captured} are captured as they are, {refused}
are refused.

## What goes where

A job is made of a `roundlog.Task`. The loop of a script falls into its parts:

| your loop | the task |
|---|---|
| `model = Net()` | `model=model`, in the mode (`train`/`eval`) it is trained in |
| `for batch in loader:` | `dataset={{"x": images, "y": labels}}`, `batch_size`, `steps`, `seed` |
| what stands between the batch and `loss.backward()` | `loss=`, a function of the model and a batch |
| `loss.backward()`, accumulated over 4 batches | `micro_batches=4` |
| `clip_grad_norm_(model.parameters(), 1.0)` | `max_grad_norm=1.0` |
| `optimizer.step()`, `optimizer.zero_grad()` | `optimizer=optimizer`, freshly made |
| `scheduler.step()` | `schedule=scheduler`, freshly made, stepped once a step |
| `if step % 100 == 0: torch.save(...)` | `interval=100` |
| `with torch.no_grad():` over held-out rows | `tiebreak train job --run trained --validate held_out.safetensors` |

`tiebreak job create script.py:task --out job`, where `task` is a function that returns the task, says whether it is
captured ([what a task may do](../operators.md#what-a-task-may-do)). A script with `transformers.Trainer` has [an
easier way](transformers.md).

## Where to augment

In the step, by `torch`: whatever it draws becomes the program's own, the same on every machine, and another in every
step; single numbers of Python's `random` and of `numpy.random` are drawn so, too. An `if` that a draw decides is
computed on [both paths](../operators.md#ifs-that-values-decide): where rows are to differ, draw for every row, and
decide by `torch.where`. What a `Dataset` draws in `__getitem__` is drawn when its rows are read into fields: once, and
then every epoch sees the same. What has to be computed of the whole batch, where `micro_batches` cuts it, stands in
`of_batch`. See [flips and crops](#random-flips-and-crops-in-the-step) and [CutMix](#cutmix-by-a-mask).

## Early stopping

All steps are trained; stopping is choosing a checkpoint. `interval` says where checkpoints are, `--validate
held_out.safetensors --validate-every 100` measures the loss on held-out rows meanwhile, and `tiebreak export trained
--steps 400 --to model.safetensors` writes the best. A trainer may end there, and nobody else has to believe the
choice: the checkpoint is under the run's root like all others.

## Mixed precision

`torch.autocast("cpu", dtype=torch.bfloat16)` around model and loss, `model.to(torch.bfloat16)`, and parts in BF16
with others in FP32 (adapters on a frozen base) are captured with the casts that the installed PyTorch makes on the
CPU, kernel by kernel ([what is computed in which format](../operators.md#mixed-precision)). The loss has to be FP32:
take it of `logits.float()`. An autocast that is left on outside of the loss is refused: a job knows the loss alone. An
autocast for `device_type="cuda"` is refused, since PyTorch switches it off where
there is no card; so is FP16, whose `GradScaler` looks at values: use BF16, and leave the scaler out. Parameters in
BF16 are stepped by `torch.optim.SGD`, `Adam` and `AdamW` with `fused=False`. Models in float64 become float32; the
engine computes every operator in FP64 and rounds once, so sums lose less than PyTorch's FP32 does.

## Schedulers

A scheduler is stepped once a step. One that your loop steps once an epoch needs its numbers in steps:
`StepLR(optimizer, step_size=30 * steps_per_epoch)`, `CosineAnnealingLR(optimizer, T_max=epochs * steps_per_epoch)`.
Those that look at the loss (`ReduceLROnPlateau`) are refused.

## Values that differ from PyTorch

Of equal elements, `topk`, `sort`, `argmax` and max pooling take the one with the lowest index, PyTorch whichever its
kernel finds first: [where PyTorch has several right
answers](../operators.md#where-pytorch-has-several-right-answers). Random numbers are the job's own, as many as
PyTorch draws.

## What the scripts share

Rows are random numbers, few and small:

```python
import torch
from roundlog import Task
from torch import Tensor, nn
from torch.nn import functional as F

{rows}
```
"""


def source_of(module: str) -> tuple[str, ast.Module]:
    text = (CORPUS / f"{module}.py").read_text()
    return text, ast.parse(text)


def lines_of(text: str, node: ast.stmt) -> str:
    """Source of a statement, without its decorators."""
    return "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])


def is_script(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and bool(node.decorator_list)


def shared(text: str, tree: ast.Module) -> str:
    """Code that the scripts of a module share: what is neither a script nor an import."""
    kept = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Assign) and not is_script(node):
            kept.append(lines_of(text, node))
    return "\n\n\n".join(kept)


def anchor(title: str) -> str:
    """Anchor of a heading, as GitHub and mkdocs make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


def code(text: str) -> str:
    return f"```python\n{re.sub(r'  # noqa:.*', '', text)}\n```\n"


def page() -> str:
    sys.path.insert(0, str(ROOT))
    corpus = importlib.import_module("tests.scripts.script_corpus")
    scripts = corpus.corpus()
    rows, tree = source_of("script_rows")
    run = lines_of(*_run())
    parts, sections = [], []
    for module in corpus.MODULES:
        text, module_tree = source_of(module)
        title = (ast.get_docstring(module_tree) or "").partition("\n")[0]
        sections.append(f"[{title[:1].lower()}{title[1:]}](#{anchor(title)})")
        own = [scripts[node.name] for node in module_tree.body if isinstance(node, ast.FunctionDef) and is_script(node)]
        parts += section(text, module_tree, own, scripts)
    refused = sum(bool(script.outcome.sentence) for script in scripts.values())
    head = INTRODUCTION.format(
        sections=",\n".join(sections),
        count=len(scripts),
        captured=len(scripts) - refused,
        refused=refused,
        rows=f"{run}\n\n\n{shared(rows, tree)}",
    )
    return "\n".join([head, *parts]).rstrip() + "\n"


def _run() -> tuple[str, ast.stmt]:
    text, tree = source_of("script_corpus")
    return text, next(node for node in tree.body if isinstance(node, ast.AnnAssign))


def section(text: str, tree: ast.Module, own: list, scripts: dict) -> list[str]:
    head, _, introduction = (ast.get_docstring(tree) or "").partition("\n\n")
    parts = [f"## {head}\n", f"{introduction}\n", "| script | becomes |", "|---|---|"]
    parts += [f"| [{script.title}](#{anchor(script.title)}) | {becomes(script, scripts)} |" for script in own]
    parts.append("")
    if beside := shared(text, tree):
        parts += ["They share:\n", code(beside)]
    nodes = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for script in own:
        parts += [f"### {script.title}\n", f"{told(script, scripts)} Source: {script.source}.\n"]
        if not script.outcome.rewrite:  # a reader of a refusal wants what works
            parts.append(code(lines_of(text, nodes[script.name])))
    return parts


def becomes(script: object, scripts: dict) -> str:
    outcome = script.outcome
    if not outcome.sentence:
        return "a job, with a warning" if outcome.warning else "a job"
    return f"refused: {link(scripts[outcome.rewrite])}" if outcome.rewrite else "refused"


def told(script: object, scripts: dict) -> str:
    outcome = script.outcome
    if not outcome.sentence:
        return f"Captured, with the **warning**: “… {outcome.warning} …”." if outcome.warning else "Captured."
    instead = f"What works: {link(scripts[outcome.rewrite])}." if outcome.rewrite else outcome.advice
    return f"**Refused**: “… {outcome.sentence} …”. {instead}"


def link(script: object) -> str:
    return f"[{script.title}](#{anchor(script.title)})"


if __name__ == "__main__":
    sys.exit(write_or_check(__doc__, {PAGE: page()}))
