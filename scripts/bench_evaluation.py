"""The cost of evaluations that can be derived again.

    .venv/bin/python scripts/bench_evaluation.py [--model FOLDER] [--requests 300] [--rounds 3] [--batch 1 8]
        [--letters]

Each round times, one after the other, lm-eval with the engine and lm-eval with transformers in BF16, with its default
of one request at a time and with others: questions with four answers each, of several tokens or, with --letters, of
one. Ratios are taken within a round, in processor time of all threads; printed are medians. Programs are captured
before: a model's are kept. `make smollm` gets the model.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PLACES = "Paris France, Rome Italy, Madrid Spain, Cairo Egypt, Tokyo Japan, Oslo Norway, Lima Peru, Havana Cuba"
TASK = """
task: capitals
dataset_path: json
dataset_kwargs: {data_files: {test: capitals.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""


def write_task(room: Path, count: int, letters: bool) -> Path:
    """Write a task of so many questions into a new folder, and return its file."""
    places, lines = [place.split() for place in PLACES.split(", ")], []
    for n in range(count):
        city, country = places[n % 8]
        cities = [places[(n + 1 + k) % 8][0] for k in range(3)]
        cities.insert(n % 4, city)
        asked = f"{n + 2} travellers want to see where the government of {country} has its seat. Where do they go?"
        choices = [f"to {name}, which is the capital" for name in cities]
        if letters:
            asked += "".join(f"\n{letter}. {name}" for letter, name in zip("ABCD", cities, strict=True))
            choices = [*"ABCD"]
        lines.append(json.dumps({"question": asked, "choices": choices, "answer": n % 4}) + "\n")
    (room / "copy").mkdir(parents=True)
    (room / "capitals.jsonl").write_text("".join(lines))
    (room / "capitals.yaml").write_text(TASK)
    return room / "capitals.yaml"


def compare_times(
    loaded: Any, config: dict[str, Any], evaluate: Callable[[], float], given: argparse.Namespace
) -> None:
    """Print the times of an evaluation by the engine and by transformers, and their scores. config: of the task, for
    lm-eval. evaluate: gives the score by the engine."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    def by_transformers(batch: int) -> float:
        theirs = HFLM(pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=batch)
        manager = TaskManager(include_defaults=False)
        tasks = list(manager.load([config])["tasks"].values())
        how: dict[str, Any] = {"task_manager": manager, "bootstrap_iters": 0, "log_samples": False}
        found = lm_eval.simple_evaluate(model=theirs, tasks=tasks, verbosity="ERROR", **how)
        return float(found["results"]["capitals"]["acc,none"])

    def timed(name: str, work: Callable[[], float]) -> float:
        began = time.process_time()
        score, seconds = work(), time.process_time() - began
        print(f"{name}: {seconds:.1f} s, acc {score:.4f}", flush=True)
        return seconds

    ratios: dict[int, list[float]] = {batch: [] for batch in given.batch}
    for _ in range(given.rounds):
        seconds = timed("engine", evaluate)
        for batch, some in ratios.items():
            name = f"transformers, {batch} at a time"
            some.append(seconds / timed(name, lambda batch=batch: by_transformers(batch)))  # type: ignore[misc]
    for batch, some in ratios.items():
        print(f"{given.requests} requests, engine / transformers, {batch} at a time: {statistics.median(some):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "build" / "models" / "SmolLM2-135M-Instruct")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--letters", action="store_true")
    given = parser.parse_args()
    from roundlog.generation import load_model
    from tiebreak.evaluation.engine_model import Answers, EngineModel, evaluate_tasks
    from tiebreak.evaluation.task_files import read_task

    loaded = load_model(given.model, dtype="bf16")
    ours = EngineModel(loaded, "exact", Answers())

    def evaluate(task: Any) -> float:
        ours.answers = Answers()
        return evaluate_tasks(ours, [task], None)[0]["acc"]

    with tempfile.TemporaryDirectory(prefix="evaluation-") as place:
        few = write_task(Path(place, "few"), 3, given.letters)
        evaluate(read_task(few, few.parent / "copy"))  # captures the model
        file = write_task(Path(place, "timed"), given.requests // 4, given.letters)
        task = read_task(file, file.parent / "copy")
        compare_times(loaded, task.config, lambda: evaluate(task), given)


if __name__ == "__main__":
    main()
