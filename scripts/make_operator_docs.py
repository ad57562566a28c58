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

Read this before the first try.

1. Capture runs your own step (model, loss, `backward()`) once, without computing anything, and writes down its
   operators. Autograd, activation checkpointing, `autograd.Function` and hooks on modules, tensors and parameters work.
2. Every step has to be a line of operators. Python's `if` and `for` may look at shapes and settings. An `if`, a
   `while` or a `min` that looks at values which the step computes is [followed on every path](#ifs-that-values-decide),
   16 at most. What only checks may stay: asserts, and an `if` that does nothing but raise an error that nobody catches,
   are taken to pass, and a program does not check them. So may prints and logs: `.item()`, `.tolist()` and formatted
   text from which nothing is computed, and sums of them from step to step (`running_loss += loss.item()`).
3. Masks may choose rows and elements: `x[mask]`, `masked_select`, `x[mask.nonzero()]`, `torch.where(mask)`, and writes
   of these forms. A program computes all rows, and leaves those that are not chosen out of every sum, mean, extreme,
   product and gradient: what they hold reaches nothing, infinities and NaN neither, and no bit is another one. Of no
   rows a sum is 0 and a mean NaN, as in PyTorch; the largest of none, an error there, is -inf. What dropout draws for
   chosen rows it draws for all, and uses theirs. Their number is a number to compute with (`len`, `.shape[0]`,
   `.numel()`, `mask.sum()`, `max(n, 1)`). Packed sequences are refused: pad
   them, and gather the last step of each. So are: rows of two masks brought together, a row taken by its place, an
   order of the rows, `if` and `range` of their number, batch norm over them.
4. Parameters may be reached in any way: through modules, lists, closures, tied or sharing memory as a whole. Arrays of
   numpy that share memory with them, or with other state, are refused.
5. What a step changes is state, if it is a tensor of one shape: parameters, buffers, attributes of objects and
   classes, items of lists and dictionaries, variables of the loss (a moving centre, a recurrent state, a teacher). It
   may be None, or not there, before the first step, if that always puts a tensor there, and may stand in a tuple, list
   or dictionary, as the state of an LSTM does.
6. Numbers of Python that steps change (counters, flags, factors that decay) are followed through all steps of the
   task. Where an operator of tensors gets one, a column of the schedule has its value at every step (`min(1.0, step /
   1000)`, `math.cos`); where Python decides by one (`if step % 2 == 0`), both ways are computed and a column chooses,
   up to 16 ways. `int()` and `float()` of one, and its text outside of a print, count as a way for every value. All
   ways have to give gradients to the same parameters. Refused are arrays of numpy that steps write, and iterators that
   steps take from. Caches (`functools.cache` too) may fill. Nobody sees the clock, files or threads: a step may not
   depend on them.
7. Writes in place are followed, through views too, and into `.data`. So is assigning to `.data` of what is state,
   unless it comes to share memory with other state. Two names of one tensor (`self.last = self.now`) are refused where
   steps write into one and read the other. So is a tensor that is kept with its history of gradients, where the next
   step differentiates through it.
8. Random numbers of torch become the program's own, the same on every machine, and so do single numbers of Python's
   `random` and of `numpy.random` (`random.random()`, `np.random.randint(5)`, `np.random.beta(0.4, 0.4)`), and
   `np.random.permutation(n)`; other arrays of theirs are refused. So is a seed that is set inside the step, a generator
   that is made there, and one that the step puts back after it has drawn (`torch.random.fork_rng()`).
9. Data come in by the batch alone. Fields are float32, bfloat16, bool or integers, which a step sees as int64; a tensor
   of PyTorch's of fewer bits it sees as it is, so convert that (`.long()`) where PyTorch asks for int64.
10. The optimizer is one of `torch.optim` over the model's parameters, or a subclass of `torch.optim.Optimizer` with a
    `step` of your own, which is traced as it is written (Lion, AdaBelief, Lookahead); or there are several, each with
    its own parameters and loss, which take turns in a step. What capture does not know of them is refused.
11. At last the captured step is run beside yours: three steps from the initial state and three from one that was moved,
    in FP64 too where the model allows it. Losses, gradients and changes of the state agree as far as FP32 explains, or
    the capture is refused and names the first tensor that differs. Your model is as it was, afterwards.

## Ifs that values decide

`if loss.item() > 10`, `if torch.rand(1) < 0.5`, `while x.norm() > 1`: where Python asks a tensor of the step for its
truth, the step is traced once for every answer. The program computes all paths, what they have in common once, and
chooses the loss, every gradient and every state by the condition, so that nothing of a path that is not taken reaches
them, infinite or NaN as it may be. A step takes as long as all its paths together.

* A step has 16 paths at most: four ifs in a row, or a loop of up to fifteen rounds. The same question has one answer,
  however often it is asked.
* Every path has to work. One that ends in an error is refused, unless it does nothing but raise: that is a check.
* A count or text of Python that is another one on another path may be shown, and no more.
* Where a parameter gets a gradient on some paths only, an optimizer that counts its steps (Adam) is refused: PyTorch
  leaves such a parameter out of a step, and how often is not known before training.
* What `.item()` gives may be compared, added and multiplied, with tensors too. A comparison is exact, with a constant
  or a number that steps change (`random.random() < epsilon`); arithmetic rounds to FP32, where Python has FP64. `int()`
  and `float()` of a tensor are refused.
* A number that the step computes may say where a tensor is cut (`x[:, top : top + 4]`), not how large the piece is.
* What stops a run, such as an index outside of its axis, stops it on the path that is taken alone.

## Where PyTorch has several right answers

PyTorch leaves some answers to the kernel at hand. A program has one, the same everywhere, which may be another one than
yours:

* Of equal elements `topk`, `sort`, `kthvalue`, `median`, `argmax` and max pooling take the one with the lowest index;
  PyTorch takes whichever its kernel finds first (only `sort(stable=True)` promises more). It matters where scores are
  equal by construction: a router that begins with zeros, images with plain areas, quantised values.
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
  term of `add` and `sub`, and their `alpha`, what is compared, the divisor of `fmod` and `remainder`, base and exponent
  of `pow`, the number of `xlogy` and `xlog1py`, the bounds of `hardshrink` and `huber_loss`; others are taken in FP32.
* `addbmm`, `addr`, `renorm`, `logit` with bounds, `addmv` and `index_add` with factors, quotients of two tensors that
  are rounded to integers, random slopes (`rrelu`) and LSTMs are refused in BF16: there, PyTorch rounds on the way.
* The mean and the reciprocal deviation of a norm are kept in FP32 where its weights, or its running statistics, are.
* Attention is `scaled_dot_product_attention` by PyTorch's own formula (`SDPBackend.MATH`), in FP32 within.
* Where PyTorch adds into BF16 again and again (gradients of embeddings, `index_add`, products over an axis), a program
  rounds the sum once.
* SGD, Adam and AdamW step parameters of BF16 by PyTorch's operators one after another, and each rounds, with the
  factors rounded where PyTorch rounds them (`add_`'s alpha). A product that is added is not rounded first, as in
  PyTorch's loop over vectors; its loop over the rest, the last elements of a tensor whose number is no multiple of 32,
  rounds it. Norms for clipping are BF16, too.
* Random numbers are drawn in FP32; uniform ones in BF16 are refused, since rounding could make them 1.
* Rows that a mask chooses are read, written and computed element by element in BF16; what goes over them (sums, means,
  products of matrices, norms) takes `.float()` first.

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
(`roundlog.capture.decompositions`), which write complex numbers, Fourier transforms, CTC and bags of embeddings in real
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
