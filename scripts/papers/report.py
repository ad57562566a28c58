"""The report: tables in markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from papers import published
from papers.tasks import TITLES


def models_of(result: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """(model, size, what was measured), in the order of the report: real models first."""
    parts = result["parts"]
    return [
        (model, size, parts[model][size])
        for model in ("resnet", "gpt2")
        for size in ("paper", "brief", "small")
        if size in parts.get(model, {})
    ]


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def size_of(count: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:.0f} B"


def spread(counts: list[int]) -> str:
    deviation = statistics.pstdev(counts)
    return f"{statistics.mean(counts):,.1f} ± {deviation:,.1f}"


def markdown(result: dict[str, Any]) -> str:
    """All of docs/papers.md."""
    parts = [
        "# The papers, reproduced",
        "Written by `scripts/paper_tables.py`; do not edit. "
        f"Measured on {result['machine']}. Profile A is the machine as it is, B its oldest instruction "
        "set on one thread, C AVX2; each run is a fresh process. OVT is *Optimistic Verifiable Training by Controlling "
        f"Hardware Nondeterminism* ({published.OVT}). OVT measured GPUs and the real models; "
        "what is comparable are ratios and orders of magnitude. Times are from a machine that was "
        "busy with other work: only ratios within one interleaved run are given.",
    ]
    for model, size, found in models_of(result):
        parts += _model(model, found, size)
    for found in list(result["parts"].get("proofs", {}).values())[-1:]:
        parts += _proofs(found)
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _model(model: str, found: dict[str, Any], size: str) -> list[str]:
    rows = found["corrections"]
    title = TITLES[model] + (
        f", small ({', '.join(f'{k} {v}' for k, v in found['arguments'].items())})" * (size == "small")
    )
    return [
        f"## {title}",
        _storage(model, rows),
        _corrections(model, rows),
        _thresholds(found["thresholds"]),
        _times(model, found["times"]),
        _divergence(found["divergence"]),
    ]


def _storage(model: str, rows: list[dict[str, Any]]) -> str:
    outputs = sum(rows[0]["train"]["outputs"])
    lines: list[Sequence[object]] = [["naive encoding, a byte a trit", "any", size_of(outputs), f"{outputs}"]]
    for row in rows:
        bits, train = row["bits"], row["train"]
        if row["policy"] == "threshold":
            tau = "Algorithm 3" if row["adaptive"] else "tau 0.25"
            if not row["adaptive"] and bits == rows[0]["bits"]:
                lines.append(["threshold, five trits a byte", "any", size_of(train["packed"]), f"{train['packed']}"])
            lines.append([f"threshold, packed and zipped, {tau}", bits, size_of(train["zipped"]), train["zipped"]])
        else:
            lines.append(["**certified**, the whole log file", bits, size_of(train["file"]), train["file"]])
    train = rows[0]["train"]
    lines.append(["Proof-of-Learning, one checkpoint: weights", 32, size_of(train["weights"]), train["weights"]])
    lines.append(["Proof-of-Learning, one checkpoint: all state", 32, size_of(train["state"]), train["state"]])
    certified = next(row["train"]["file"] for row in rows if row["policy"] == "certified")
    factor = train["weights"] / certified
    return (
        "### Storage for one step (OVT, Table 2)\n\n"
        + table(["what", "b_r", "size", "bytes"], lines)
        + f"\nOVT: {published.STORAGE[model]}. "
        "Proof-of-Learning (Jia et al. 2021) stores a checkpoint every k steps, so its storage for a step is the above "
        f"divided by k: it falls below the certified log of one step from k = {factor:,.1f} on, without exact replay."
    )


def _corrections(model: str, rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        forward, backward = ([counts[side] for counts in row["corrections"]] for side in (0, 1))
        outputs = sum(row["train"]["outputs"])
        share = 100 * statistics.mean(map(sum, row["corrections"])) / outputs
        logged = 100 * statistics.mean(map(sum, row["train"]["logged"])) / outputs
        policy = row["policy"] + (", tau of Algorithm 3" if row["adaptive"] else ", tau 0.25") * (
            row["policy"] == "threshold"
        )
        same = "equal" if row["same"] else "**different**"
        lines.append(
            [policy, row["bits"], spread(forward), spread(backward), f"{share:.2g} %", f"{logged:.3g} %", same]
        )
    return (
        "### Corrections by the auditor, a step (OVT, Table 3)\n\n"
        + table(["policy", "b_r", "forward", "backward", "of all outputs", "logged", "roots of A and B"], lines)
        + f"\nOVT: {published.CORRECTIONS[model]}. The optimizer counts as backward. Under certified, a "
        "correction is an output whose own FP64 value would have been rounded to another number than the right one."
    )


def _thresholds(found: dict[str, Any]) -> str:
    lines = [
        [
            kind,
            f"{row['elements']:,}",
            row["differing"],
            row["beyond"],
            f"{row['search']:.4f}",
            f"{row['threshold']:.4f}",
        ]
        for kind, row in found.items()
    ]
    ovt = ", ".join(f"{kind} {value}" for kind, value in published.THRESHOLDS.items())
    return (
        "### Thresholds by operator, A and B (OVT, Table 4)\n\n"
        + table(["operator", "outputs", "rounded differently", "by more than one", "Algorithm 3", "used here"], lines)
        + f"\nIn units of 2^-23 * 2^e. OVT: {ovt}. 0.5 means that nothing "
        "differed in the sample; *used here* stays below what the sample's widest difference asks for, twice over. "
        + _caution(found)
    )


def _caution(found: dict[str, Any]) -> str:
    """Comparison of the order of sizes with OVT's, and its reason."""
    least = min(row["threshold"] for row in found.values())
    careful = " and ".join(kind for kind, row in found.items() if row["threshold"] == least)
    differing = sum(row["differing"] for row in found.values())
    elements = sum(row["elements"] for row in found.values())
    return (
        "Of OVT's operators the convolution asks for the most caution and the norms for the least; here it is "
        f"{careful}. Of {elements:,} outputs {differing} were rounded differently here, and the widest difference of "
        f"two FP64 values is {0.5 - least:.2g} of a unit or less, where the terms of a sum nearly cancel. OVT's 0.305 "
        "comes from a fifth of a unit, between GPUs of three generations and over more steps."
    )


def _times(model: str, found: dict[str, Any]) -> str:
    trainer, auditor = published.TIMES[model]
    lines: list[Sequence[object]] = [
        ["OVT", f"{trainer:.2f}", f"{auditor:.2f}"],
        *(
            [
                policy,
                f"{found[policy]['trainer']:.2f}",
                f"{found[policy]['auditor'] / found[policy]['trainer']:.2f}",
            ]
            for policy in ("threshold", "certified")
        ),
    ]
    return "### Times (OVT, Table 5)\n\n" + table(["", "trainer / plain FP64", "auditor / trainer"], lines)


def _divergence(found: dict[str, Any]) -> str:
    lines = [[name, f"{row['weights']:.3g}", f"{row['outputs']:.3g}"] for name, row in found["apart"].items()]
    return (
        f"### Divergence after {found['steps']} steps (OVT, Table 6)\n\n"
        + table(["what differs", "L2 distance of the weights", "L2 distance of the outputs"], lines)
        + f"\nOVT, at the end of a training: {published.DIVERGENCE}; its method brings the latter to zero. "
        + _drift(found)
    )


def _drift(found: dict[str, Any]) -> str:
    """Comparison of the order of sizes with OVT's, and its reason."""
    apart, first = found["apart"], found["first"]
    order, hardware = (apart[f"{name}, plain FP32"]["weights"] for name in ("order of the data", "hardware A and B"))
    text = (
        f"In the weights the order of the data counts {published.ORDER_BY_HARDWARE:.0f} times as much there as the "
        f"hardware, and here {order / hardware:,.3g} times, after {found['steps']} steps from random weights. "
        f"The distance of A and B is {first:.2g} after the first of them and {hardware / first:.4g} times that "
        "after the last"
    )
    if losses := found.get("losses"):
        text += f", while the loss goes from {losses[0]:.3g} to {losses[-1]:.3g}"
    if hardware > 10 * first:
        text += (
            ". A network that has just begun, at its full learning rate, makes a large difference of any small one, "
            "whatever it comes from; a longer training leaves that behind"
        )
    return text + "."


def _proofs(found: dict[str, Any]) -> list[str]:
    lines = []
    for model, row in found.items():
        times, train = row["times"], row["train"]
        seconds = times["plain_seconds"] * times["trainer"]
        steps = 128 if model == "logistic" else 1
        lines.append(
            [
                TITLES[model] + (", an epoch of 128 steps" if model == "logistic" else ", a step"),
                f"{seconds * steps:.2g} s",
                f"{times['trainer']:.2f}",
                size_of(train["file"] * steps),
                published.PROOF_SYSTEMS[model],
            ]
        )
    return [
        "## Beside proof systems (OVT, section 6.2)",
        table(["task", "certified trainer", "/ plain FP64", "log", "proofs, as published"], lines)
        + "\nBatches and models have the sizes of those papers (2,048 rows of 1,024 features; VGG-11 for 32 x 32 "
        "images, batch 16); three steps were taken, and the epoch is 128 times one step. Their proofs are "
        "zero-knowledge and need no auditor, which ours does.",
    ]
