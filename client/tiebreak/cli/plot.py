"""`tiebreak plot`: histories of runs as one picture."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebreak.cli import output
from tiebreak.cli.failures import CommandError, WrongUsage
from tiebreak.cli.option_groups import JSON, argument, command, option

if TYPE_CHECKING:
    from collections.abc import Sequence

_KINDS = ("png", "svg")
_FEW = 60
"""Most steps of a curve whose steps get a dot each."""


@dataclass(slots=True)
class Curves:
    """The curves of one run."""

    name: str
    loss: list[tuple[int, float]] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)
    column: list[tuple[int, float]] = field(default_factory=list)
    columns: set[str] = field(default_factory=set)
    """Names of all columns of the schedule."""


@command(
    "plot",
    "tiebreak plot trained --out loss.png",
    "tiebreak plot wide narrow --column 0/lr --log-scale --out loss.svg",
)
def plot(
    runs: list[Path] = argument("RUN...", "Directories of runs, finished or not; a line for each."),
    out: Path = option("The picture: a name that ends in .png or .svg.", ..., "FILE"),
    column: str | None = option(
        "A column of the schedule, such as 0/lr, the learning rate of the first group of parameters, on an axis at the "
        "right.",
        metavar="NAME",
    ),
    log_scale: bool = option("Logarithms of the loss.", False),
    json: bool = JSON,
) -> None:
    """Draw the loss of runs over their steps, and the validation loss where there is one, from their histories."""
    kind = out.suffix[1:].lower()
    if kind not in _KINDS:
        raise WrongUsage(f"{out} is neither a PNG nor an SVG: give a name that ends in .png or .svg.")
    if len({run.resolve() for run in runs}) != len(runs):
        raise WrongUsage("a run is named twice: leave one away.")
    curves = [_curves(run, column) for run in runs]
    if column is not None and not any(one.column for one in curves):
        known = sorted(set().union(*(one.columns for one in curves)))
        raise CommandError(
            f"no history has a column {column[:80]!r}: it has {', '.join(known[:20]) or 'none'}; choose one of them."
        )
    _draw(curves, out, kind, column, log_scale=log_scale)
    if json:
        output.show_json(
            {
                "picture": out,
                "runs": {one.name: len(one.loss) + len(one.validation) for one in curves},
                "column": column,
            }
        )
    else:
        steps, many = sum(len(one.loss) for one in curves), "1 run" if len(curves) == 1 else f"{len(curves)} runs"
        output.show_line(f"Drew {steps} steps of {many}: {out}")


def _curves(run: Path, column: str | None) -> Curves:
    """Read the curves of a run. Raises CommandError, StorageError."""
    from roundlog.training import HISTORY_FILE, read_history

    if not run.is_dir():
        raise CommandError(f"there is no run directory {run}: make one with `tiebreak train`.")
    if not (run / HISTORY_FILE).exists():
        raise CommandError(f"{run} has no history ({HISTORY_FILE}): name the directory of a run, which writes one.")
    curves = Curves(str(run))
    for entry in read_history(run):
        if entry.loss is not None:
            curves.loss.append((entry.step, entry.loss))
        if entry.validation is not None:
            curves.validation.append((entry.step, entry.validation))
        if column is not None and column in entry.schedule:
            curves.column.append((entry.step, entry.schedule[column]))
        curves.columns.update(entry.schedule)
    if not curves.loss and not curves.validation:
        raise CommandError(f"the history of {run} has no step yet: wait for the first one.")
    return curves


def _draw(curves: Sequence[Curves], out: Path, kind: str, column: str | None, *, log_scale: bool) -> None:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CommandError("drawing needs matplotlib: pip install 'tiebreak[plot]'.") from error

    from roundlog.storage import replace_file

    # Equal histories make equal files. A `matplotlibrc` in the working directory, which may be a stranger's, could have
    # LaTeX run.
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams["svg.hashsalt"] = "tiebreak"
        figure = Figure(figsize=(8, 4.8), layout="constrained")
        axes: Any = figure.add_subplot()
        right: Any = axes.twinx() if column is not None else None
        for number, one in enumerate(curves):
            _draw_run(one, f"C{number % 10}", axes, right, column)
        axes.set(xlabel="step", ylabel="loss", yscale="log" if log_scale else "linear")
        axes.grid(alpha=0.3)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if right is not None:
            right.set_ylabel(_shown(str(column)))
        drawn = axes.get_legend_handles_labels()
        more = right.get_legend_handles_labels() if right is not None else ([], [])
        (right or axes).legend(drawn[0] + more[0], drawn[1] + more[1], frameon=False)
        with replace_file(out) as file:
            figure.savefig(file, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)


def _draw_run(one: Curves, color: str, axes: Any, right: Any, column: str | None) -> None:
    name = _shown(one.name)
    if one.loss:
        marker = "." if len(one.loss) <= _FEW else ""
        axes.plot(*zip(*one.loss, strict=True), color=color, linewidth=1.2, marker=marker, label=name)
    if one.validation:
        label = f"{name}, validation"
        points = zip(*one.validation, strict=True)
        axes.plot(*points, color=color, linestyle="--", marker="o", markersize=4, linewidth=1, label=label)
    if one.column:
        points = zip(*one.column, strict=True)
        right.plot(*points, color=color, linestyle=":", linewidth=1, label=f"{name}, {_shown(str(column))}")


def _shown(name: str) -> str:
    """Return a name as a legend shows it: short, printable, no formula, and not hidden, as one of `_x` is."""
    from tiebreak.rpc.chain_errors import printable

    text = printable(name)
    text = (text if len(text) <= 60 else f"...{text[-57:]}").replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
