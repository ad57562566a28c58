"""Writes docs/operators.md from the definitions of operators and the table of lowering rules.

python scripts/make_operator_docs.py          writes the page
python scripts/make_operator_docs.py --check  exits with 1 if the page on disk is not what would be written
"""

from __future__ import annotations

import sys
from math import log2
from pathlib import Path
from typing import Any

from generated import write_or_check
from roundlog.capture.decompositions import decompositions, own_decompositions
from roundlog.capture.rules import RULES
from roundlog.definitions import DEFINITIONS, OperatorDefinition, OperatorKind

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operators.md"

HEADS = {
    OperatorKind.SOURCE: "Sources: where values come from, and where they go",
    OperatorKind.MOVEMENT: "Movement: bits are copied",
    OperatorKind.EXACT: "Exact: IEEE 754, or integers, have one answer",
    OperatorKind.INEXACT: "Inexact: computed in FP64, certified, rounded once",
}

INTRODUCTION = """# Operators

Written by `scripts/make_operator_docs.py` from the definitions and the table of rules; a test holds it fresh.

## What a task may do

Read this before the first try. [What to write instead](how-to/scripts.md#what-to-write-instead) has a rewrite for each
refusal.

1. A task is made by a function, which is called several times and makes an equal task each time: each trace and each
   comparison gets a task of its own, so that no step of capture's changes yours. Capture takes some twelve real steps
   of such a task, and watches what they change. Then it runs a step (model, loss, `backward()`) once more, without
   computing anything, and writes down its operators. Autograd, activation checkpointing, `autograd.Function` and hooks
   on modules, tensors and parameters work.
2. All steps are one line of operators. Python's `if`, `for` and `while` may look at shapes and settings. They may not
   look at values of tensors: decide by `torch.where`. That holds for `assert` and for an `if` that only raises an
   error, too: leave them out, since a run stops by itself at a loss or a state that is not finite. A number that is
   taken out of a tensor (`.item()`, `float()`, `.tolist()`) may be printed, and nothing else.
3. Masks may write: `h[mask] = 0`, `h[mask] = row` become `torch.where`. They may not choose rows: `x[mask]`,
   `masked_select`, `nonzero` and packed sequences are refused, since their shapes depend on values. Keep all rows, and
   multiply by the mask as zeros and ones.
4. Parameters may be reached in any way: through modules, lists, closures, tied or sharing memory as a whole. Arrays of
   numpy that share memory with them, or with other state, are refused.
5. What a step changes is state, if it is a tensor of one shape: parameters, buffers, attributes of objects and
   classes, items of lists and dictionaries, variables of the loss (a moving centre, a recurrent state, a teacher). It
   has to be there, in its final shape, before the first step: begin with zeros in place of None. It may stand in a
   tuple, as the state of an LSTM does. A list or dictionary that holds it stays the same object: put the tensor into
   it.
6. Numbers of Python that a step changes (counters, epochs, factors that decay) are refused by their names, with the
   values before and after, also where they act at step 1,000 alone. Leave them out where they are only printed. Else
   [state them](how-to/scripts.md#numbers-that-change-from-step-to-step) in `Task(numbers={...})`, as a function of the
   step or one number a step, or count in a buffer. Flags, texts, lengths of lists, arrays of numpy, iterators and
   positions in files are refused in the same way. Caches (`functools.cache`) may fill in the first step. A step may not
   ask the clock, or read files.
7. Writes in place are followed, through views too, and into `.data`. So is assigning to `.data` of what is state. A
   tensor that is kept with its history of gradients is refused, where the next step differentiates through it.
8. Random numbers of torch become the program's own, the same on every machine, and so does
   `np.random.permutation(n)` as an index. Single numbers of Python's `random` and of `numpy.random` are numbers that
   are taken out of a tensor, so that rule 2 holds for them: draw by torch. A seed that is set inside the step is
   refused, and so is a generator of one's own: draw from torch's.
9. Data come in by the batch alone. Fields are float32, bfloat16, bool or integers, which a step sees as int64; a tensor
   of PyTorch's of fewer bits it sees as it is, so convert that (`.long()`) where PyTorch asks for int64.
10. The optimizer is one of `torch.optim` over the model's parameters, or a subclass of `torch.optim.Optimizer` with a
    `step` of your own, which is traced as it is written (Lion, AdaBelief, Lookahead), and whose state begins with
    zeros; or there are several, each with its own parameters and loss, which take turns in a step. What capture does
    not know of them is refused.
11. At last the captured step is run beside yours: three steps from the initial state and three from one that was moved,
    in FP64 too where the model allows it. Losses, gradients and changes of the state agree as far as FP32 explains, or
    the capture is refused and names the first tensor that differs. Where numbers have fewer than 32 bits, or states
    more than 2^24 elements, your steps' kernels are compared one by one instead, of three steps and one.

## What no way finds

Capture looks at what a step reaches and calls, and at what twelve steps change. It does not see what changes something
between steps, from outside of them. `tests/engine/capture/test_late_counters.py` shows that these are captured:

* another thread that writes a number which the step reads, later than in the steps that are watched;
* a function that Python's garbage collector calls, or a signal, and that does so.

A program has the number as it was at capture, in all steps.

## Where PyTorch has several right answers

PyTorch leaves some answers to the kernel at hand. A program has one, the same everywhere, which may be another one than
yours:

* Of equal elements `topk`, `sort`, `argmax` and max pooling take the one with the lowest index; PyTorch takes
  whichever its kernel finds first (only `sort(stable=True)` promises more). It matters where scores are equal by
  construction: a router that begins with zeros, images with plain areas, quantised values.
* `histc` counts in bins whose edges are low + (high - low) i / bins, rounded once to FP32. PyTorch computes the bin of
  an element in FP32, so an element within an ulp of an edge may fall into the bin beside it.

The comparison with your own step notices both where they change a loss, and the job is then refused.

## Mixed precision

Casts are those of the installed PyTorch on the CPU: autocast's lists are its own, which keep other operators in FP32
than those of a card (`softmax` and `layer_norm` are computed in the format of their input). What a step computes in
BF16 means the following.

* Products of matrices, convolutions without a bias, sums, + - * /, comparisons, and what moves numbers take BF16 and
  round the exact value to BF16, once. So does a layer with a bias, which is one more term of the sum (`addmm` and
  `baddbmm`, if the bias is the same for every row, alpha is 1, and beta a number of BF16).
* All other operators of PyTorch (activations, softmax, norms, losses, means, a convolution with a bias) widen what they
  are given to FP32, compute as written below, and round what comes out, once. So do those that PyTorch takes apart.
* A tensor without axes is rounded to BF16 beside a tensor of BF16, unless it is the second factor of a product or a
  divisor; so is an integer tensor. A number of Python's is rounded where PyTorch's kernel on the CPU rounds it: a
  term of `add` and `sub`, and their `alpha`, what is compared, base and exponent of `pow`, the number of `xlogy` and
  `xlog1py`, the bounds of `hardshrink` and `huber_loss`; others are taken in FP32.
* `addr`, `renorm`, `logit` with bounds, `addmv` and `index_add` with factors, quotients of two tensors that are rounded
  to integers, LSTMs, and gradients of volumes by convolutions whose windows overlap are refused in BF16: there, PyTorch
  rounds on the way.
* The mean and the reciprocal deviation of a norm are kept in FP32 where its weights, or its running statistics, are.
* Attention is `scaled_dot_product_attention` by PyTorch's own formula (`SDPBackend.MATH`), in FP32 within.
* Where PyTorch adds into BF16 again and again (gradients of embeddings, `index_add`, products over an axis), a program
  rounds the sum once.
* SGD, Adam and AdamW step parameters of BF16 by PyTorch's operators one after another, and each rounds, with the
  factors rounded where PyTorch rounds them (`add_`'s alpha). A product that is added is not rounded first, as in
  PyTorch's loop over vectors; its loop over the rest, the last elements of a tensor whose number is no multiple of 32,
  rounds it. Norms for clipping are BF16, too.
* Random numbers are drawn in FP32; uniform ones in BF16 are refused, since rounding could make them 1.
* Elements that a mask chooses may be written in BF16.

Before a job is made, your own step is watched. It has to call the kernels that were traced, in order, with the same
dtypes, so that no cast is missing and none is too many. The part of the program that stands for each kernel's results
is evaluated on PyTorch's values of what it reads: results in BF16 are PyTorch's, but for one in a hundred that may be
the number beside it, and results in FP32 agree to 1e-5 of the largest element; or both, where PyTorch's kernel rounds
more often than it needs to, to what it gives in FP64. What the optimizer makes of the gradients is compared in FP64,
and by ulps where parameters are BF16. A job is refused otherwise, by the name of the first kernel. If no parameter
changes in the steps that are compared, as where updates of BF16 weights are rounded away, a warning says why.

## What programs are made of

Every value of a program is the output of one of these. Their names are the closed set that trainers, auditors and the
contract know; anything else is refused. How a program is written down, stands in [files of a job](job-format.md).

A formula names the operator's inputs first, and then its *parameters*, which have a column of their own (in brackets
those that may be missing). A parameter is an integer, or a list of them where there is one for each axis, dimension or
item; `arithmetic` and `stored` are text. Operators that work element by element, and `where`, broadcast their inputs by
NumPy's rule. Inputs have one dtype, but for indices and conditions; so has the output, unless its line says another.

Values of captured programs are f32, bf16, int64 or bool, and so is a job's state: parameters and buffers of other
types are refused. Integers of a
dataset are read as int64, however narrow they are stored. What a model computes in int32 on its way
(`torch.randint(..., dtype=torch.int32)`, `arange`, `bucketize`) is held as int64: the same numbers, except that where
int32 would overflow and wrap around, a program goes on with the number itself; a step in which that happens while it is
compared with yours is refused.
"""

LOWERED = """## What PyTorch operators become

ATen operators that a rule writes in the operators above, by the file of the rule. A name without an overload stands
for all its overloads, and in-place forms go with their plain ones.
"""

COMPOSED = """### How some of them are computed

Every operator in which something is written rounds once. What PyTorch computes at once may so be rounded more than once
here; where that is not obvious:
"""

DECOMPOSED = """## What PyTorch takes apart first

These ATen operators are decomposed before any rule sees them: by PyTorch's core table, or by functions of ours
(`roundlog.capture.decompositions`), which write rotary embeddings and bags of embeddings in real
operators. They can be captured as far as what they consist of can.
"""


def error(definition: OperatorDefinition) -> str:
    relative = definition.relative_error
    return definition.bound or f"2^{int(log2(relative))} relatively ({relative * 2**52:g} ulp)"


def parameters(definition: OperatorDefinition) -> str:
    names = [*(f"`{name}`" for name in definition.attributes), *(f"(`{name}`)" for name in definition.optional)]
    return ", ".join(names) or "-"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def composed() -> list[str]:
    """Rows for rules, and for functions of our own that take operators apart, that say how they compute."""
    names: dict[Any, list[str]] = {}
    for aten, rule in RULES.items():
        names.setdefault(rule, []).append(aten)
    for op, function in own_decompositions().items():
        names.setdefault(function, []).append(str(op).removeprefix("aten.").removesuffix(".default"))
    return [
        f"| {', '.join(f'`{aten}`' for aten in sorted(group))} | {cell(rule.__doc__)} |"
        for rule, group in sorted(names.items(), key=lambda item: min(item[1]))
        if rule.__doc__
    ]


def page() -> str:
    lines = [INTRODUCTION]
    for kind, head in HEADS.items():
        inexact = kind == OperatorKind.INEXACT
        lines += [f"### {head}\n", f"| operator | parameters | meaning |{' FP64 error at most |' if inexact else ''}"]
        lines.append("|---|---|---|---|" if inexact else "|---|---|---|")
        for name, definition in sorted(DEFINITIONS.items()):
            if definition.kind == kind:
                tail = f" {error(definition)} |" if inexact else ""
                lines.append(f"| `{name}` | {parameters(definition)} | {cell(definition.meaning)} |{tail}")
        lines.append("")
    lines += [LOWERED, "| rules | ATen operators |", "|---|---|"]
    files: dict[str, list[str]] = {}
    for aten, rule in RULES.items():
        files.setdefault(rule.__module__.rpartition(".")[2], []).append(aten)
    lines += [
        f"| {file} | {', '.join(f'`{aten}`' for aten in sorted(names))} |" for file, names in sorted(files.items())
    ]
    lines += ["", COMPOSED, "| ATen operators | computed as |", "|---|---|", *composed()]
    bases = {name.partition(".")[0] for name in RULES}
    taken = {str(op).removeprefix("aten.").partition(".")[0] for op in decompositions() if str(op).startswith("aten.")}
    lines += ["", DECOMPOSED, ", ".join(f"`{name}`" for name in sorted(taken - bases)) + "."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_check(__doc__, {PAGE: page()}))
