"""Every kind of model of `transformers` as a task: whether it is captured, and trains to one root on two machines.

    .venv/bin/python scripts/try_models.py [--autocast] [--only NAME] [--again OUTCOME] [--jobs N] \
        [--write docs/models.md]

Models are built from small configurations; nothing is downloaded. Every kind has a process of its own, so that one that
crashes or hangs is a row of the table and no more. Rows are kept in scripts/models/rows.jsonl (`--rows`) as they come:
an interrupted run carries on after them. `--again refused` tries those again whose outcome was that; `--only` always
does. With `--autocast`, kinds that are captured in FP32 are tried under autocast in BF16; their rows are in
scripts/models/rows_autocast.jsonl, and become a column of the page.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from models import page
from models.hosts import FIRST, SECOND, Host, serve

_ROWS = Path(__file__).resolve().parent / "models" / "rows.jsonl"
_ROWS_AUTOCAST = _ROWS.with_name("rows_autocast.jsonl")


def work(order: dict[str, Any], told: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """The work of a machine on one order."""
    from models import trying
    from models.kinds import Kind

    directory = Path(order["directory"])
    if "kind" in order:
        return trying.attempt(Kind(**order["kind"]), directory, told, order["autocast"])
    return trying.execute(directory, "second")


def try_one(kind: Mapping[str, str], hosts: tuple[Host, Host], limit: int, autocast: bool) -> dict[str, Any]:
    """The row of a kind."""
    with tempfile.TemporaryDirectory(prefix="models-") as room:
        order = {"directory": room, "limit": limit}
        row = hosts[0].ask({**order, "kind": kind, "autocast": autocast})
        if row.get("outcome") == "captured":
            other = hosts[1].ask(order)
            row["other root"] = other.get("root", other.get("why", "the process died"))
    return row


def run(
    names: list[str] | None, again: list[str], jobs: int, limit: int, rows_file: Path, autocast: bool = False
) -> dict[str, dict[str, Any]]:
    """Tries what is missing, and gives all rows."""
    from dataclasses import asdict

    from models.kinds import discover

    kinds = discover()
    unknown = [name for name in names or () if name not in kinds]
    if unknown:
        raise SystemExit(f"there is no kind {unknown[0]}: scripts/models/kinds.py finds those that transformers has")
    if autocast:
        in_fp32 = page.read(_ROWS)
        kinds = {name: kind for name, kind in kinds.items() if name in in_fp32 and page.is_captured(in_fp32[name])}
        unknown = [name for name in names or () if name not in kinds]
        if unknown:
            raise SystemExit(f"{unknown[0]} is not captured in FP32: try it without --autocast first")
    rows = page.read(rows_file)
    todo = [name for name in names or kinds if names or name not in rows or rows[name]["outcome"] in again]
    idle: SimpleQueue[tuple[Host, Host]] = SimpleQueue()
    pairs = [(Host(FIRST, Path(__file__)), Host(SECOND, Path(__file__))) for _ in range(jobs)]
    for pair in pairs:
        idle.put(pair)

    def one(name: str) -> None:
        pair = idle.get()
        try:
            row = try_one(asdict(kinds[name]), pair, limit, autocast)
        finally:
            idle.put(pair)
        row |= {library: version(library) for library in ("torch", "transformers")}
        rows[name] = row
        with rows_file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        said = row.get("root", "")[:16] or row.get("why", "")
        print(f"{name}: {row['outcome']} {row.get('operators', '')} {said}", flush=True)

    try:
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(one, todo))
    finally:
        for pair in pairs:
            for host in pair:
                host.close()
    page.write(rows_file, rows.values())
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only", action="append", metavar="NAME", help="only this kind; may be given again")
    parser.add_argument("--again", action="append", default=[], metavar="OUTCOME", help="try such kinds again")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="kinds at a time")
    parser.add_argument("--limit", type=int, default=240, metavar="SECONDS", help="for each kind on each machine")
    parser.add_argument("--autocast", action="store_true", help="try kinds that are captured in FP32 under autocast")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="where rows are kept")
    parser.add_argument("--write", type=Path, metavar="FILE", help="where to write the page")
    options = parser.parse_args()
    if options.host:
        import models.trying  # noqa: F401  (imported once, before processes are forked)

        serve(work)
        return 0
    rows_file = options.rows or (_ROWS_AUTOCAST if options.autocast else _ROWS)
    rows = run(options.only, options.again, options.jobs, options.limit, rows_file, options.autocast)
    captured, tried = page.counts(rows.values())
    print(f"captured {captured} of {tried}; {len(rows) - tried} not tried")
    if options.write is not None:
        from models.kinds import discover

        others = page.read(_ROWS_AUTOCAST)
        if options.autocast:
            rows, others = page.read(_ROWS), rows
        options.write.write_text(page.markdown(rows.values(), (FIRST, SECOND), len(discover()), others))
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
