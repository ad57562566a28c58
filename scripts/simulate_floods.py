"""Floods of games in simulated time: can an attacker beat an honest trainer, or an honest challenger, by numbers alone?

    .venv/bin/python scripts/simulate_floods.py --games 1000 --block 12 --clock 86400 --replay 60 [--figure DIR]

An attacker without limit of money challenges an honest trainer with `--games` puppets, each about another step of a run
of 1,024 steps, which answer at once, in rounds, at the last moment, or never; then a trainer that lies puts a tenth as
many puppets before the one honest challenger. Executing one interval again takes `--replay` seconds on the honest
machine, blocks come every `--block` seconds, and each side has `--clock` seconds of thinking time in a game. Nobody
waits in real time.

Real are: the contract on an EVM (anvil), its gas and its full blocks, the roles' code, their sender, and every tree and
every proof. Simulated are the time, the duration of work, and the signatures of puppets. Exits 0 only if no honest
party loses anything, every verdict is right, and none comes later than the bound in docs/protocol.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch
from floods.play import ETHER, Flood, Ground, Setting, honest_challenger, honest_trainer
from floods.puppets import Manner
from floods.simulated import Meter


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=1000, help="puppets against the honest trainer")
    parser.add_argument("--before", type=int, help="puppets before the honest challenger (default: a tenth of --games)")
    parser.add_argument("--block", type=int, default=12, help="seconds between two blocks")
    parser.add_argument("--clock", type=int, default=86_400, help="seconds of thinking time for each side of a game")
    parser.add_argument("--replay", type=float, default=60.0, help="seconds to execute an interval again")
    parser.add_argument("--concurrent", type=int, default=16, help="games of a job that are played at a time")
    parser.add_argument("--figure", type=Path, metavar="DIR", help="draws floods.png and floods.svg there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes everything that was measured")
    parser.add_argument(
        "--add", type=Path, action="append", metavar="FILE", help="draws what an earlier run has written, too"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    setting = Setting(block=options.block, clock=options.clock, replay=options.replay, concurrent=options.concurrent)
    started = time.monotonic()
    floods: list[Flood] = []

    def keep(flood: Flood) -> None:
        floods.append(_told(flood))
        if options.json is not None:
            what = {"setting": asdict(setting), "floods": [asdict(one) for one in floods]}
            options.json.write_text(json.dumps(what, indent=1) + "\n")

    curves = options.figure is not None
    before = max(1, options.games // 10) if options.before is None else options.before
    with tempfile.TemporaryDirectory(prefix="floods-") as name, Meter() as meter:
        ground = Ground(Path(name), setting)
        for puppets, manners in _trainers_plan(options.games, curves=curves):
            keep(honest_trainer(ground, meter, puppets, manners))
        for puppets in _sizes(before, curves=curves) if before else []:
            keep(honest_challenger(ground, meter, puppets))
    if options.figure is not None:
        from floods.figure import draw

        draw([*floods, *_measured_before(options.add or [], setting)], setting, options.figure)
    failed = [flood for flood in floods if why(flood)]
    for flood in failed:
        print(f"FAILED: {flood.scene}, {flood.puppets} puppets that move {flood.manner}: {why(flood)}")
    print(f"{len(floods)} floods, {len(failed)} failed, {time.monotonic() - started:.0f} seconds")
    return 1 if failed else 0


def _measured_before(paths: list[Path], setting: Setting) -> list[Flood]:
    """Floods that earlier runs with the same setting have written."""
    found = []
    for path in paths:
        what = json.loads(path.read_text())
        if what["setting"] != asdict(setting):
            raise SystemExit(f"{path} was measured with another setting: {what['setting']}")
        found += [Flood(**flood) for flood in what["floods"]]
    return found


def why(flood: Flood) -> str:
    """The violation of a scene in one clause; empty if all is well."""
    if not flood.right:
        return "the verdict is wrong"
    if flood.honest_loss or flood.games_lost:
        return f"the honest side lost {flood.games_lost} games and {flood.honest_loss} wei"
    if flood.delay > flood.bound:
        return f"the verdict came {flood.delay} seconds late, and the bound is {flood.bound}"
    return ""


def _sizes(most: int, *, curves: bool) -> list[int]:
    """Numbers of puppets: only the largest, or points for a curve before it."""
    return sorted({most, *(max(1, most // part) for part in (100, 10))}) if curves else [most]


def _trainers_plan(most: int, *, curves: bool) -> list[tuple[int, list[Manner]]]:
    """The largest flood has puppets of all manners; for a curve, each manner has floods of its own."""
    plan = [(most, list(Manner))] if most else []
    if most and curves:
        plan += [(size, [manner]) for size in _sizes(min(most, 100), curves=True) for manner in Manner]
    return plan


def _told(flood: Flood) -> Flood:
    days = f"{flood.delay / 86_400:.1f} days late (bound {flood.bound / 86_400:.1f})"
    clock = f"{flood.closest} s left on the shortest honest clock"
    gas = f"gas {flood.honest_gas / 1e6:.1f} M against {flood.attacker_gas / 1e6:.1f} M"
    bonds = f"{flood.attacker_bonds / ETHER:g} ether of bonds lost by the attacker"
    verdict = "right" if flood.right else "WRONG"
    print(
        f"{flood.scene}, {flood.puppets} puppets that move {flood.manner}: verdict {verdict}, honest loss "
        f"{flood.honest_loss / ETHER:g} ether, {flood.games_lost} games lost, {days}; {clock}; at most "
        f"{flood.most_live} games at a time; {gas} ({flood.honest_transactions} honest transactions); "
        f"{bonds}; {flood.blocks} blocks, {flood.seconds:.0f} s",
        flush=True,
    )
    for text, count in flood.warnings.items():
        print(f"  {count} times: {text}", file=sys.stderr, flush=True)
    return flood


if __name__ == "__main__":
    sys.exit(main())
