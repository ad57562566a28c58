"""Small tasks of lm-eval with local data: one of each kind that evaluations have."""

from __future__ import annotations

import json
from pathlib import Path

from roundlog.generation import load_model
from tiebreak.evaluation.evaluation_receipt import EvaluatedTask, EvaluationReceipt, Likelihood

WORDS = ("river", "stone", "cloud", "amber", "tiger")

CHOICES = """
task: words
dataset_path: json
dataset_kwargs: {data_files: {test: words.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "Q: {{question}}\\nA:"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
"""
TEXTS = """
task: pages
dataset_path: json
dataset_kwargs: {data_files: {test: words.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list:
  - {metric: word_perplexity}
  - {metric: bits_per_byte}
"""
ENDS = """
task: ends
dataset_path: json
dataset_kwargs: {data_files: {test: words.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["a", "e"], max_gen_toks: 12, do_sample: false}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""


def write_tasks(place: Path) -> None:
    """Write the tasks `words`, `pages` and `ends`, each in its file, with their data."""
    lines = [
        {
            "question": f"which word is number {n}?",
            "choices": [f" {WORDS[n % 5]}", f" {WORDS[(n + 1) % 5]}"],
            "answer": n % 2,
        }
        for n in range(6)
    ]
    (place / "words.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, text in (("words", CHOICES), ("pages", TEXTS), ("ends", ENDS)):
        (place / f"{name}.yaml").write_text(text)


def write_evaluation(model: Path, file: Path) -> Path:
    """Write the receipt of an evaluation of a model that nobody has made."""
    receipt = EvaluationReceipt(
        model=load_model(model).identity,
        dtype="bf16",
        arithmetic="exact",
        versions=dict.fromkeys(("tiebreak", "torch", "transformers", "lm_eval"), "any"),
        limit=None,
        tasks=(EvaluatedTask(name="<b>words|", config_sha256=bytes(32), data={}, scores={"acc": 0.5}),),
        answers=(Likelihood(-1.0, True),),
        requests_root=bytes(32),
    )
    file.write_text(receipt.to_json())
    return file
