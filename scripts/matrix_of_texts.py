"""The matrix of texts and machines: small language models, served under hardware profiles in fresh processes.

    .venv/bin/python scripts/matrix_of_texts.py [--sample N] [--model NAME] [--machine NAME]
                                                [--markdown docs/bit-equality.md]

Six architectures with random weights, in FP32 and BF16, answer the same eight requests on every machine of matrix.py.
They are served in 24 ways: 1 or 8 texts at once; prompts read in chunks of 1 token, of 7, or whole; caches of 64 or
512 positions; one client, or eight at a time. The longest text is generated once more without a server, and every text
repeated in one pass. The receipts of a request have to be one, to the byte, but for the hashes of request and response,
which name the hour.

A machine serves every model in one way, or in as many as --sample N says, and the next machine in others: with
--sample 3, eight machines have served every model in every way, and with --sample 24 each of them has. A run takes 5 to
10 seconds of a processor, most of them for the capture: the 96 runs of one way a quarter of an hour, all 2304 five
hours. Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

import torch
import transformers
from generated import with_section
from machines.profiles import MACHINES, Machine
from machines.served_texts import ASKED, OPTIONS, ServedTexts, ServingOptions, be_a_machine_that_serves
from machines.text_models import TEXT_MODELS, save_text_model

TITLE = "## One receipt of a text on every machine"
_TEXT = """
Written by `scripts/matrix_of_texts.py --markdown`; do not edit. Small models of `transformers` with random weights are
[served](how-to/serving.md) on the machines of the first table, each a fresh process, and answer the same eight
requests: prompts of 1 to 24 tokens, and 6 to 20 new ones, drawn but for one text. A run is one of 24 ways to do so: 1
or 8 texts at once, prompts read in chunks of 1 token, of 7, or whole, caches of 64 or 512 positions, one client or
eight at a time. *Ways* counts the different ones that have been run. The longest text is generated without a server as
well, and all are verified in one pass: *wrong* counts those that are not right.

*Receipts* counts the different ones of all requests, without the hashes of request and response, which name the hour:
eight is one a request. *Root* is a digest of these. *Plain results* counts the different logits of plain PyTorch for
the longest text, which each machine reads in one pass, in a batch of eight, and token by token.
"""


@dataclass(frozen=True, slots=True)
class TextRun:
    """A model, served in one way on one machine."""

    machine: str
    model: str
    way: ServingOptions
    found: ServedTexts


def planned(models: Sequence[str], machines: Sequence[str], sample: int) -> dict[str, list[tuple[str, ServingOptions]]]:
    """Models and ways of every machine. sample: ways a model and machine; a model is served in others on the next
    machine, as far as there are."""
    plans = {}
    for number, machine in enumerate(machines):
        plans[machine] = [
            # Steps of 5 and 7 pass all 24 ways, so that neighbours differ in more than one thing.
            (
                model,
                OPTIONS[(5 * TEXT_MODELS.index(model) + 7 * (number * sample + one)) % len(OPTIONS)],
            )
            for model in models
            for one in range(sample)
        ]
    return plans


def run(
    plans: Mapping[str, Sequence[tuple[str, ServingOptions]]],
    room: Path,
    *,
    known: Mapping[str, Machine] = MACHINES,
    told: Callable[[str], None] = lambda text: None,
) -> list[TextRun]:
    """Runs the plans, a process a machine. Raises RuntimeError if one fails."""
    for model in dict.fromkeys(model for plan in plans.values() for model, _ in plan):
        save_text_model(model, room / model)
    runs = list[TextRun]()
    for number, (name, plan) in enumerate(plans.items()):
        path = room / f"plan-{number}.json"
        path.write_text(json.dumps([{"model": str(room / model), "way": asdict(way)} for model, way in plan]))
        said = known[name].run(__file__, "--plan", str(path), hours=6)
        lines = [ServedTexts(**json.loads(line)) for line in said.splitlines()]
        runs += [TextRun(name, *what, found) for what, found in zip(plan, lines, strict=True)]
        told(f"{name}: {len(plan)} runs, {sum(one.seconds for one in lines):.0f} s")
    return runs


def wrong(runs: Sequence[TextRun]) -> list[str]:
    """The differences from what is expected, a sentence each."""
    first, sentences = dict[str, list[str]](), list[str]()
    for one in runs:
        right = first.setdefault(one.model, one.found.receipts)
        where = f"{one.model} on {one.machine}, {one.way}"
        if one.found.receipts != right:
            differ = [number for number, (a, b) in enumerate(zip(one.found.receipts, right, strict=True)) if a != b]
            sentences.append(f"{where}: other receipts of the requests {differ}")
        if one.found.alone != right[-1]:
            sentences.append(f"{where}: another receipt without a server")
        if one.found.wrong:
            sentences.append(f"{where}: {one.found.wrong} texts that a repetition does not find right")
    return sentences


def markdown(runs: Sequence[TextRun]) -> str:
    """The section of the page."""
    lines = ["| model | machines | ways | runs | texts | receipts | root | wrong | plain results |", "|---" * 9 + "|"]
    for model in dict.fromkeys(one.model for one in runs):
        of_model = [one for one in runs if one.model == model]
        receipts = {digest for one in of_model for digest in (*one.found.receipts, one.found.alone)}
        root = sha256("".join(of_model[0].found.receipts).encode()).hexdigest()
        row = [model, len({one.machine for one in of_model}), len({one.way for one in of_model}), len(of_model)]
        row += [len(of_model) * (len(ASKED) + 1), len(receipts), f"`{root[:16]}`"]
        row += [sum(one.found.wrong for one in of_model), len({x for one in of_model for x in one.found.plain})]
        lines.append("| " + " | ".join(map(str, row)) + " |")
    where = f"Measured with PyTorch {torch.__version__} and transformers {transformers.__version__} on "
    where += f"{platform.machine()}, in {sum(one.found.seconds for one in runs) / 60:.0f} minutes."
    return "\n".join([TITLE, _TEXT, where, "", *lines]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, help=argparse.SUPPRESS)
    ways = range(1, len(OPTIONS) + 1)
    parser.add_argument("--sample", type=int, choices=ways, default=1, metavar="N", help="ways a model and machine")
    parser.add_argument("--model", action="append", choices=TEXT_MODELS, help="only these")
    parser.add_argument("--machine", action="append", choices=list(MACHINES), help="only these")
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="the page whose section to replace")
    options = parser.parse_args()
    if options.plan is not None:
        be_a_machine_that_serves(options.plan)
        return 0
    # Texts are generated by CPUs.
    here = [name for name in options.machine or MACHINES if MACHINES[name].device == "cpu"]
    with tempfile.TemporaryDirectory(prefix="texts-") as room:
        plans = planned(options.model or TEXT_MODELS, here, options.sample)
        runs = run(plans, Path(room), told=lambda text: print(text, flush=True))
    text = markdown(runs)
    print(text)
    if options.markdown is not None:
        options.markdown.write_text(with_section(options.markdown.read_text(), text))
    found = wrong(runs)
    print("\n".join(found) or "One receipt for each request, on every machine, in every way.")
    return 1 if found else 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
