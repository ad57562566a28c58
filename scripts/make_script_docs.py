"""Writes docs/how-to/scripts.md, an index of the scripts in tests/scripts, which the tests run.

python scripts/make_script_docs.py          writes the page
python scripts/make_script_docs.py --check  exits with 1 if the page on disk is not what would be written
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from generated import write_or_check

if TYPE_CHECKING:
    from tests.scripts.script_corpus import Script

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "how-to" / "scripts.md"

INTRODUCTION = """# From your script to a job

Written by `scripts/make_script_docs.py` from the scripts in `tests/scripts`. Of {count} scripts {captured} are captured
as they are, {refused} are refused. Tests run all of them. Those that are captured train to the losses of plain PyTorch
(three steps, within 1e-6), and to one root on two kinds of processor. Those that are refused are refused in the
sentence that stands here, and the script that does the same instead is captured.

Find the shape of script that you have in [the tables](#images), and read it in its file.

## What goes where

A job is made of a `roundlog.Task`, and a task is made by a function. Everything that a step changes (model, optimizer,
scheduler, tensors of the loss) is made inside the function, which is called several times: each trace and each
comparison gets a task of its own.

```python
def make_task():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Task(
        model=model, loss=loss, optimizer=optimizer, dataset=rows, batch_size=8, steps=400, interval=100, seed=1
    )


job = Job.from_task(make_task)
```

On the command line, `tiebreak job create script.py:make_task --out job` says whether it is captured ([what a task may
do](../operators.md#what-a-task-may-do)). Each call begins with the same random numbers. Parameters, buffers and the
first batch have to be the same each time, or the task is refused. If a function returns the same objects each time
(`lambda: task`), they are copied; if they cannot be copied, the task is refused.

The loop of a script falls into its parts:

| your loop | the task |
|---|---|
| `model = Net()` | `model=model`, in the mode (`train`/`eval`) it is trained in |
| `for batch in loader:` | `dataset={{"x": images, "y": labels}}`, `batch_size`, `steps`, `seed` |
| what stands between the batch and `loss.backward()` | `loss=`, a function of the model and a batch |
| `loss.backward()`, accumulated over 4 batches | `micro_batches=4` |
| `clip_grad_norm_(model.parameters(), 1.0)` | `max_grad_norm=1.0` |
| `optimizer.step()`, `optimizer.zero_grad()` | `optimizer=optimizer`, freshly made |
| `scheduler.step()` | `schedule=scheduler`, freshly made, stepped once a step |
| `beta = min(1.0, step / 1000)` | `numbers={{"beta": lambda step: min(1.0, step / 1000)}}`, read as `batch["beta"]` |
| `if step % 100 == 0: torch.save(...)` | `interval=100` |
| `with torch.no_grad():` over held-out rows | `tiebreak train job --run trained --validate held_out.safetensors` |

A script with `transformers.Trainer` has [an easier way](transformers.md).

## Numbers that change from step to step

All steps of a job are one program, so that a number of Python's that a step changes is refused by its name: a count,
an epoch, a weight that is annealed. State it, as a function of the step (0, 1, ...) or as one number a step. There are
two ways:

```python
numbers = {{"beta": lambda step: min(1.0, step / 1000)}}  # the loss reads batch["beta"], a tensor of no axes
numbers = {{"model.step": lambda step: step}}  # the script stays as it is, and counts model.step by itself
```

In the first way, `torch.where(batch["step"] < 100, a, b)` decides in place of an `if`. In the second way, what is
computed with the number has to work with a tensor as well, as products and sums do. The refusal gives the name;
`loss.step` is the variable `step` of the loss. The number is the one with which a step begins, and a wrong one is
refused. A buffer of the model, which is a tensor, may count as well.

## What to write instead

{rewrites}

Writes by a mask (`h[mask] = 0`, `h[mask] = row`) are captured.

## Where to augment

Augment in the step, by `torch`. What it draws becomes the program's own: the same on every machine, and another in
every step. Draw for every row, and decide by `torch.where`. What a `Dataset` draws in `__getitem__` is drawn when its
rows are read into fields: once, and then every epoch sees the same. What has to be computed of the whole batch, where
`micro_batches` cuts it, stands in `of_batch`. See {flips_and_crops} and {cutmix}.

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
"""

REWRITES = (
    (
        "`if loss > 10:`, `if random.random() < 0.5:`",
        "compute both, and choose by `torch.where`: {layer_by_where}, {flips_and_crops}",
    ),
    (
        "`x[mask].mean()`, `nonzero`, `masked_select`",
        "keep all rows, and multiply by the mask as zeros and ones: {weighted_mean}, {experts_by_masks}; or labels of "
        "-100 in `F.cross_entropy`: {masked_words}",
    ),
    (
        "`beta = min(1, step / 1000)`, where the step counts",
        "`numbers=`: {epsilon_by_numbers}; or a buffer: {kl_annealing_by_buffer}",
    ),
    (
        "`if step % 10 == 0: target.load_state_dict(...)`",
        "`torch.where`, by a number that is stated or a buffer: {dqn_by_where}",
    ),
    (
        "`total += loss.item()`",
        "leave it out, since every loss stands in the run's `history.jsonl`; or a tensor: {running_loss_as_tensor}",
    ),
    ("`x * y.max().item()`", "compute with the tensor: `x * y.max()`"),
    ("`assert loss > 0`, `if torch.isnan(loss): raise`", "leave it out: a run stops at a loss that is not finite"),
    (
        "`self.state = None` before the first step",
        "begin with zeros of the final shape: {statistics}, {lstm_state_zero}",
    ),
    (
        '`self.state = [h]` or `{{"h": h}}` in the step: another list or dictionary each time',
        '`self.state[0] = h`, `self.state["h"] = h`: keep the list, and put the tensor into it',
    ),
    ("`pack_padded_sequence`", "pad, and gather the last step of each: {padded_gru}"),
    ("`AveragedModel` of `torch.optim.swa_utils`", "an average by hand: {ema}"),
    ("`random` and `numpy.random`", "`torch.rand` and its like: {teacher_forcing}"),
    ("a generator of one's own, a seed that the step sets", "torch's own generator, under the seed of the task"),
    ("`torch.fft`, `torch.stft`", "products with matrices of cosines and sines: {fno_by_products}, {stft_by_products}"),
    ("`torch.linalg.cholesky`, `inv`, `solve`", "a loop over the columns: {cholesky_by_columns}"),
)
"""What is refused, and what is captured."""


def page() -> str:
    sys.path.insert(0, str(ROOT))
    corpus = importlib.import_module("tests.scripts.script_corpus")
    scripts: dict[str, Script] = corpus.corpus()
    refused = sum(bool(script.outcome.sentence) for script in scripts.values())
    links = {name: link(script) for name, script in scripts.items()}
    rows = ["| what is refused | what is captured |", "|---|---|", *(f"| {what} | {how} |" for what, how in REWRITES)]
    counts = {"count": len(scripts), "captured": len(scripts) - refused, "refused": refused}
    lines = [INTRODUCTION.format(**counts, rewrites="\n".join(rows).format(**links), **links)]
    for module in corpus.MODULES:
        home = f"tests.scripts.{module}"
        head, _, introduction = (sys.modules[home].__doc__ or "").partition("\n\n")
        lines += [
            f"## {head.strip()}\n",
            f"{introduction.strip()}\n",
            "| script | seen in | becomes |",
            "|---|---|---|",
        ]
        own = (script for script in scripts.values() if script.function.__module__ == home)
        lines += [
            f"| {script.title}: {link(script)} | {script.source} | {becomes(script, links)} |".replace("\n", " ")
            for script in own
        ]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def link(script: Script) -> str:
    """Link to the function, by its name."""
    code = script.function.__code__
    return f"[`{script.name}`](../../tests/scripts/{Path(code.co_filename).name}#L{code.co_firstlineno})"


def becomes(script: Script, links: dict[str, str]) -> str:
    outcome = script.outcome
    if not outcome.sentence:
        return f"a job, with the warning “… {outcome.warning} …”" if outcome.warning else "a job"
    instead = f"write {links[outcome.rewrite]}" if outcome.rewrite else outcome.advice
    return f"refused, “… {outcome.sentence} …”: {instead}"


if __name__ == "__main__":
    sys.exit(write_or_check(__doc__, {PAGE: page()}))
