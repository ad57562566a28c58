"""The cost of a run's history: seconds that its lines take, against a step of the small GPT.

    .venv/bin/python scripts/measure_history.py [--steps 40] [--rounds 50] [--directory DIR]

The GPT is that of `roundlog.examples.gpt` on generated text. Its steps are timed by the history itself. Lines are
written by the same class on the same disk; the sync at the end of a run is measured apart. Figures are medians.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from roundlog.examples.gpt import gpt
from roundlog.training.job import Job
from roundlog.training.run_files import HISTORY_FILE, History, read_history
from roundlog.training.trainer import Trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=50, help="histories that are written")
    parser.add_argument("--directory", type=Path, default=None, help="where the files are written")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        room = Path(name)
        (room / "text").write_bytes(bytes(32 + i * i % 90 for i in range(20_000)))
        job = Job.from_task(gpt(data=room / "text", steps=arguments.steps, interval=arguments.steps))
        Trainer(job, room / "run").run()
        step = statistics.median(entry.seconds for entry in read_history(room / "run"))
        lines, syncs = [], []
        for number in range(arguments.rounds):
            place = room / str(number)
            place.mkdir()
            history = History(place, job, 0)
            started = time.perf_counter()
            for index in range(arguments.steps):
                history.add_step(index, 2.3456789, 0.123456)
            written = time.perf_counter()
            history.close()
            lines.append((written - started) / arguments.steps)
            syncs.append(time.perf_counter() - written)
        line, sync = statistics.median(lines), statistics.median(syncs)
        size = (room / "0" / HISTORY_FILE).stat().st_size / arguments.steps
    print(f"a step of the small GPT: {1e3 * step:.1f} ms (median of {arguments.steps})")
    print(f"a line of its history:   {1e3 * line:.4f} ms, {size:.0f} bytes: {100 * line / step:.3f} % of a step")
    print(f"the sync at the end:     {1e3 * sync:.2f} ms, once a run")


if __name__ == "__main__":
    main()
