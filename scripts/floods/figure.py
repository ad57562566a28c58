"""The figure of the floods: delay, loss and cost against the number of puppets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from floods.play import ETHER, Flood, Setting

_DAY = 86_400
_GWEI = 5
"""Assumed price of gas, to show gas beside bonds."""


def draw(floods: Sequence[Flood], setting: Setting, room: Path) -> None:
    """Writes floods.png and floods.svg. Needs matplotlib (the extra `papers`)."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "tiebreak"
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(15.5, 4.6))
    _delays(panels[0], floods, setting)
    _loss(panels[1], floods)
    _costs(panels[2], floods)
    figure.suptitle(
        f"Puppets against one honest side: blocks of {setting.block} s, clocks of {setting.clock / _DAY:g} day, "
        f"{setting.replay:g} s to execute an interval, {setting.concurrent} games at a time"
    )
    figure.tight_layout()
    room.mkdir(parents=True, exist_ok=True)
    for kind in ("png", "svg"):
        figure.savefig(room / f"floods.{kind}", dpi=110, metadata={"Date": None} if kind == "svg" else None)
    pyplot.close(figure)


def _curves(floods: Sequence[Flood]) -> dict[str, list[Flood]]:
    curves: dict[str, list[Flood]] = {}
    for flood in sorted(floods, key=lambda flood: flood.puppets):
        label = f"{flood.scene}, puppets move: {flood.manner}"
        if flood.scene == "honest challenger":
            label = "honest challenger behind a trainer's puppets"
        curves.setdefault(label, []).append(flood)
    return curves


def _delays(panel: Any, floods: Sequence[Flood], setting: Setting) -> None:
    for number, (label, curve) in enumerate(_curves(floods).items()):
        days = [max(flood.delay / _DAY, 0.01) for flood in curve]
        panel.plot(
            [flood.puppets for flood in curve], days, "osv^DP"[number % 6], label=label, markersize=6 - number // 2
        )
    most = max(flood.puppets for flood in floods)
    puppets = sorted({*range(1, min(most, 200) + 1), *range(200, most + 1, 10), most})
    bound = [setting.bound(count) / _DAY for count in puppets]
    panel.plot(puppets, bound, "k--", linewidth=1.2, drawstyle="steps-post", label="bound of the contract")
    panel.set(xscale="log", yscale="log", xlabel="puppets", ylabel="days", title="Delay of the right verdict")
    panel.grid(alpha=0.3)
    panel.legend(fontsize=7)


def _loss(panel: Any, floods: Sequence[Flood]) -> None:
    """Draws the loss of the honest side, and the shortest time that one of its clocks had left."""
    for number, (label, curve) in enumerate(_curves(floods).items()):
        puppets = [flood.puppets for flood in curve]
        left = [flood.closest / 3600 for flood in curve]
        panel.plot(puppets, left, "osv^DP"[number % 6] + "-", linewidth=0.8, label=label, markersize=5)
    panel.plot(
        [flood.puppets for flood in floods],
        [flood.honest_loss / ETHER for flood in floods],
        "rx",
        markersize=8,
        label="honest loss in ether (all floods)",
    )
    panel.set(xscale="log", xlabel="puppets", ylabel="hours; ether", title="Honest clock at its worst; honest loss")
    panel.set_ylim(bottom=-1)
    panel.grid(alpha=0.3)
    panel.legend(fontsize=7, loc="center left")


def _costs(panel: Any, floods: Sequence[Flood]) -> None:
    trainer = sorted((flood for flood in floods if flood.scene == "honest trainer"), key=lambda flood: flood.puppets)
    ether = _GWEI * 10**9 / ETHER
    points = {
        "honest trainer: gas": ("o", "C0", [flood.honest_gas * ether for flood in trainer]),
        "attacker: gas": ("s", "C1", [flood.attacker_gas * ether for flood in trainer]),
        "attacker: bonds lost (0.25 ether each)": ("x", "C3", [flood.attacker_bonds / ETHER for flood in trainer]),
    }
    for label, (marker, colour, cost) in points.items():
        panel.plot([flood.puppets for flood in trainer], cost, marker, color=colour, label=label, markersize=5)
    panel.set(xscale="log", yscale="log", xlabel="puppets", ylabel=f"ether (gas at {_GWEI} gwei)")
    panel.set_title("What a flood costs (honest trainer)")
    panel.grid(alpha=0.3)
    panel.legend(fontsize=7)
