"""The table of kinds as a page, and the rows as a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]

_CLOSE = 1e-4
"""FP32 roundings in another order change the loss of so small a model by less."""

APART = {
    "afmoe": "Its routers begin with zeros, so that all experts have one score: `topk` takes the first of them here, "
    "and in PyTorch whichever its kernel finds.",
    "levit": "Its batch norms see few numbers and magnify roundings: PyTorch in FP64 has 0.579528.",
}
"""Kind -> why its first loss is another than PyTorch's."""

MACHINES_OWN = (
    "`bailing_hybrid`, `falcon_mamba`, `jamba`, `kimi_linear`, `mamba`, `nemotron_h`, `qwen3_5`, `rwkv`, `xlnet`"
)
"""Kinds whose first weights PyTorch computes by functions that have other bits on other processors."""


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Name -> row; an unfinished last line, of a run that was killed, is left out."""
    rows: dict[str, dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        rows[row["name"]] = row
    return rows


def write(path: Path, rows: Iterable[Row]) -> None:
    """Writes the rows as lines, sorted by name."""
    path.write_text("".join(json.dumps(row) + "\n" for row in sorted(rows, key=lambda row: str(row["name"]))))


def counts(rows: Iterable[Row]) -> tuple[int, int]:
    """(how many are captured and have one root on both machines, how many PyTorch trains)."""
    tried = [row for row in rows if row["outcome"] != "not tried"]
    return sum(is_captured(row) for row in tried), len(tried)


def is_captured(row: Row) -> bool:
    return row["outcome"] == "captured" and row.get("root") == row.get("other root")


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def markdown(
    rows: Iterable[Row], machines: tuple[str, str], known: int, autocast: Mapping[str, Row] | None = None
) -> str:
    """The whole page. known: how many kinds there are. autocast: name -> the row of a kind under autocast."""
    autocast = autocast or {}
    rows = sorted(rows, key=lambda row: (str(row["family"]), str(row["name"])))
    captured, tried = counts(rows)
    versions = {name: ", ".join(sorted({row[name] for row in rows})) for name in ("transformers", "torch")}
    in_evaluation = sum("mode" in row for row in rows if is_captured(row))
    lines = [
        f"captured {captured} of {tried} kinds of models of `transformers` {versions['transformers']}, "
        f"{in_evaluation} of them in evaluation mode",
        "",
        "# What is captured of Hugging Face's transformers",
        "",
        "Written by `scripts/try_models.py --write` from `rows.jsonl` and `rows_autocast.jsonl` in `scripts/models`; "
        "do not edit.",
        "",
        "A kind is a model type of `transformers` with the head that comes first in `scripts/models/kinds.py`. It is "
        "built from a small configuration, without weights, and trained for two steps by AdamW, on random data. It "
        f"counts if plain PyTorch {versions['torch']} trains it to the same bits twice. `transformers` has {known} "
        f"kinds; {len(rows)} of them have been tried.",
        "",
        "It is *captured* if `Job.from_task` makes a job of it, and the job ends at one root under the hardware "
        f"profiles *{machines[0]}* and *{machines[1]}*. What is refused in training mode is tried again in evaluation "
        "mode (`model.eval()`), which trains without dropout. Layer drop and SpecAugment are switched off in the "
        "configuration: they decide by numbers that are drawn outside of the step.",
        "",
        f"Models are made before capture begins, by PyTorch alone. The first weights of {MACHINES_OWN} come from "
        "functions that have other bits on other processors (`exp`, `log`), so that their roots are one machine's. "
        "Within `roundlog.portable`, where `tiebreak job create` makes tasks, they are the same everywhere.",
        "",
        *_losses(rows),
        "",
        *_under_autocast(rows, autocast),
        "",
        "| kind | family | class | loss | parameters | operators | under autocast | outcome |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["outcome"] != "not tried":
            cells = [row["name"], row["family"], row["class"], row["loss"], f"{row['parameters']:,}"]
            cells.append(f"{row['operators']:,}" if "operators" in row else "-")
            cells += [_outcome(autocast[row["name"]]) if row["name"] in autocast else "-", _outcome(row)]
            lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    lines += [
        "",
        "## Not tried",
        "",
        "These do not count: a library is missing, or the small configuration and the inputs that are made by rule do "
        "not fit the model.",
        "",
        "| kind | class | why |",
        "|---|---|---|",
    ]
    for row in rows:
        if row["outcome"] == "not tried":
            lines.append("| " + " | ".join(_cell(str(row[key])[:200]) for key in ("name", "class", "why")) + " |")
    return "\n".join(lines) + "\n"


def _losses(rows: Iterable[Row]) -> list[str]:
    """Sentences about the first losses of programs that draw no random number, beside PyTorch's."""
    compared = [row for row in rows if is_captured(row) and "losses" in row]
    apart = [row for row in compared if _differ(*row["losses"])]
    sentences = [
        f"{len(compared)} of the captured programs draw no random number. The loss of the first step of "
        f"{len(compared) - len(apart)} of them is within {_CLOSE:g} of plain PyTorch's, relatively."
    ]
    for row in apart:
        theirs, ours = row["losses"]
        sentences.append(
            f"`{row['name']}` has {ours:.6g} where PyTorch has {theirs:.6g}. {APART.get(row['name'], '')}".strip()
        )
    return sentences


def _under_autocast(rows: Iterable[Row], autocast: Mapping[str, Row]) -> list[str]:
    """Sentences about the kinds that were tried under autocast, among those that are captured in FP32."""
    captured = [row["name"] for row in rows if is_captured(row)]
    found = [autocast[name] for name in captured if name in autocast]
    same, trained = counts(found)
    return [
        '*Under autocast*: model and loss in BF16, as `torch.autocast("cpu", torch.bfloat16)` has it. Of the '
        f"{len(captured)} kinds that are captured in FP32, {len(found)} have been tried so; PyTorch trains {trained} "
        f"of them to the same bits twice, and {same} of these are captured and end at one root."
    ]


def _differ(theirs: float, ours: float) -> bool:
    return not abs(theirs - ours) <= _CLOSE * max(abs(theirs), abs(ours))


def _outcome(row: Row) -> str:
    if row["outcome"] == "captured" and not is_captured(row):
        return f"two roots: {row.get('root')} and {row.get('other root')}"
    if row["outcome"] != "captured":
        return f"{row['outcome']}: {row['why']}"
    told = f"`{row['root'][:16]}`"
    return told + (f"; in evaluation mode, since in training mode {row['why']}" if "mode" in row else "")
