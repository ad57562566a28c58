"""`SFTTrainer` and `DPOTrainer` of trl as tasks: they have the losses of their own `train()`. Without trl, these tests
are skipped."""

from __future__ import annotations

import copy
import importlib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog.capture import CaptureError, Task, capture
from roundlog.capture.huggingface.trainer_task import OF_TRL

from tests.engine.capture.random_trainers import ADAPTED, MODELS, Trained, batch_of, by_program, tokenizer

trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")  # trl sends no telemetry from there
    datasets.disable_progress_bars()
    warnings.filterwarnings("ignore", category=FutureWarning)


class Smoothed(trl.SFTTrainer):  # type: ignore[misc, name-defined]
    """A trainer with a loss of its own around that of SFT."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        loss = super().compute_loss(model, inputs, *args, **options)
        more = sum(one.square().sum() for one in model.parameters() if one.requires_grad)
        return loss + 1e-3 * more


def texts_trainer(
    directory: Path, rows: Any, model: str = "rotary", kind: type = trl.SFTTrainer, **arguments: Any
) -> Any:
    """A trainer of rows of several lengths, of at most 6 tokens."""
    torch.manual_seed(4)
    own = {"output_dir": str(directory), "use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no"}
    sizes = {"max_length": 6, "per_device_train_batch_size": 2, "max_steps": 3}
    return kind(
        model=(MODELS | ADAPTED)[model][0](0.0),
        args=trl.SFTConfig(**{**own, **sizes, **arguments}),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=tokenizer("[EOS]", eos_token="[EOS]"),
    )


TEXTS = [{"text": " ".join(f"w{2 + (row + word) % 9}" for word in range(1 + row % 5))} for row in range(12)]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [{"pad_to_multiple_of": 6}, {"packing": True, "packing_strategy": "wrapped"}])
def test_texts_of_several_lengths_become_rows_of_one(arguments: dict[str, Any], tmp_path: Path) -> None:
    task = Task.from_trainer(texts_trainer(tmp_path, TEXTS, **arguments))
    assert task.dataset["input_ids"].shape[1] == 6
    capture(lambda: task)


OF_TEXTS: dict[str, dict[str, Any]] = {
    "rows of several lengths": {},
    "another loss": {"loss_type": "dft"},
    "recomputed activations": {"gradient_checkpointing": True},
    "adapters": {"model": "LoRA", "max_length": 5},
    "a subclass": {"kind": Smoothed},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_TEXTS)
def test_rows_padded_to_the_longest_of_all_give_the_losses_of_train(name: str, tmp_path: Path) -> None:
    """Which pads them to the longest of a batch."""
    arguments = {"optim": "sgd", "learning_rate": 0.1, "gradient_accumulation_steps": 2, **OF_TEXTS[name]}
    task = Task.from_trainer(texts_trainer(tmp_path, TEXTS, **arguments))
    assert task.dataset["input_ids"].shape == (12, arguments.get("max_length", 6))
    ours = by_program(task, capture(lambda: task))
    rows = []
    for step in range(task.steps):
        batch = batch_of(task, step)
        for row, mask in zip(batch["input_ids"], batch["attention_mask"].bool(), strict=True):
            rows.append({"input_ids": row[mask].tolist()})
    assert len({len(row["input_ids"]) for row in rows}) > 2
    theirs = texts_trainer(
        tmp_path,
        rows,
        **arguments,
        logging_steps=1,
        train_sampling_strategy="sequential",
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    theirs.train()
    losses = [line["loss"] for line in theirs.state.log_history if "loss" in line]
    assert losses == pytest.approx(ours.losses, rel=1e-4) and losses[0] != pytest.approx(losses[2], rel=2e-3)


@pytest.mark.slow
def test_packed_documents_train_as_documents_in_rows_of_their_own(tmp_path: Path) -> None:
    """To the bit: whatever stands beside a document in its row, and however its row is padded, is a zero in a sum."""

    def states(**arguments: Any) -> tuple[int, Trained]:
        made = texts_trainer(tmp_path, TEXTS, max_steps=2, learning_rate=0.1, optim="sgd", **arguments)
        task = Task.from_trainer(made)
        return task.rows, by_program(task, capture(lambda: task))

    (packed, one), (apart, other) = (
        states(packing=True, per_device_train_batch_size=8),
        states(per_device_train_batch_size=12),
    )
    assert (packed, apart) == (8, 12)
    assert one.losses == other.losses and one.losses[0] != one.losses[1]
    assert one.states.keys() == other.states.keys()
    assert all(torch.equal(value, other.states[name]) for name, value in one.states.items())


def pairs_trainer(directory: Path, rows: Any, model: str, **arguments: Any) -> Any:
    """A trainer of pairs of answers of several lengths."""
    torch.manual_seed(4)
    own = {"output_dir": str(directory), "use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no"}
    sizes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 3, "beta": 3.0}
    how = {"learning_rate": 0.3, "optim": "sgd", "gradient_checkpointing": False, "disable_tqdm": True}
    made = (MODELS | ADAPTED)[model][0](0.0)
    return trl.DPOTrainer(
        model=made,
        ref_model=None if model in ADAPTED else copy.deepcopy(made),
        args=trl.DPOConfig(**{**own, **sizes, **how, **arguments}),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=tokenizer("[EOS]", eos_token="[EOS]"),
    )


def spelled(*words: int) -> str:
    return " ".join(f"w{word}" for word in words)


PAIRS = [
    {
        "prompt": spelled(2 + row % 5),
        "chosen": " " + spelled(*range(3, 4 + row % 2)),
        "rejected": " " + spelled(*range(5, 6 + row // 2 % 2)),
    }
    for row in range(8)
]

OF_PAIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "adapters": ("LoRA", {}),
    "adapters, with log-probabilities of the base in the data": ("LoRA", {"precompute_ref_log_probs": True}),
    "all weights, and a copy of the first": ("rotary", {}),
    "another loss": ("tied", {"loss_type": ["ipo", "apo_zero"], "loss_weights": [0.5, 1.0]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_PAIRS)
def test_pairs_of_answers_give_the_losses_of_train(name: str, tmp_path: Path) -> None:
    model, arguments = OF_PAIRS[name]
    task = Task.from_trainer(pairs_trainer(tmp_path, PAIRS, model, **arguments))
    assert task.dataset["input_ids"].shape[:2] == (8, 2)
    ours = by_program(task, capture(lambda: task))
    rows = []
    for step in range(task.steps):
        batch = batch_of(task, step)
        for pair, mask, answer in zip(*(batch[one] for one in batch if "_" in one and "ref" not in one), strict=True):
            prompt = pair[0][: int((answer[0] == 0).long().argmin())].tolist()
            parts = [one[mask[at].bool()][len(prompt) :].tolist() for at, one in enumerate(pair)]
            rows.append((prompt, *parts))
    texts = [[tokenizer("[EOS]", eos_token="[EOS]").decode(part) for part in row] for row in rows]
    given = [{"prompt": prompt, "chosen": " " + one, "rejected": " " + other} for prompt, one, other in texts]
    theirs = pairs_trainer(tmp_path, given, model, **arguments, logging_steps=1, train_sampling_strategy="sequential")
    theirs.train()
    losses = [line["loss"] for line in theirs.state.log_history if "loss" in line]
    assert losses == pytest.approx(ours.losses, rel=1e-4) and abs(losses[0] - losses[2]) > 0.001


class Reader(trl.SFTTrainer):  # type: ignore[misc, name-defined]
    """A trainer whose loss depends on what it has counted for its log."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        return super().compute_loss(model, inputs, *args, **options) * (1 + self._total_train_tokens)


def refused(made: Any, *words: str) -> None:
    with pytest.raises(CaptureError) as caught:
        capture(lambda: Task.from_trainer(made))
    for word in words:
        assert word in str(caught.value)


def test_a_loss_that_reads_the_log_is_refused(tmp_path: Path) -> None:
    refused(texts_trainer(tmp_path, TEXTS, kind=Reader), "_Logged")


def test_another_version_or_trainer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = texts_trainer(tmp_path, TEXTS)
    with monkeypatch.context() as patch:
        patch.setattr(trl, "__version__", "1.99.0")
        refused(made, "trl is 1.99.0, which nobody has held a job against: install trl 1.16.*")
    other = type("KTOTrainer", (trl.SFTTrainer,), {"__module__": "trl.trainer.kto_trainer"})
    refused(texts_trainer(tmp_path, TEXTS, kind=other), "trl's KTOTrainer is none of the trainers", "compute_loss")


def test_the_table_names_classes_of_trl() -> None:
    for name in OF_TRL:
        home, _, kind = name.rpartition(".")
        assert hasattr(importlib.import_module(home), kind)
