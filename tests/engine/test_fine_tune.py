"""Scripts that measure BF16: a fine-tune, on a model of the same kind with few weights, and losses beside autocast."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import compare_bf16_losses
import measure_fine_tune
import pytest
from measure_fine_tune import Room, compare_roots, plain_losses, source_of
from roundlog.capture import CaptureError
from roundlog.training import read_history

ROOT = Path(__file__).parents[2]

pytest.importorskip("peft")

STEPS = 10
FORMAT_ALONE = 2**-8
"""More than BF16 moves a loss: in 8 steps, those of `train()` in BF16 and in FP32 are up to 0.0009 from each other."""


def model_in(folder: Path) -> Path:
    """A Llama with random weights in BF16, and a tokenizer of bytes, as a download would leave them."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(
        models.BPE(vocab={letter: number for number, letter in enumerate(sorted(letters))}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        initializer_range=0.3,  # Of the weights that are usual, all rows have one loss, whatever is trained.
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def measured(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT / "engine"), str(ROOT / "client"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "measure_fine_tune.py"), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )


def largest_difference(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


@pytest.mark.slow
def test_a_script_comes_to_one_root_on_two_machines_and_a_receipt(tmp_path: Path) -> None:
    model, text, room = model_in(tmp_path / "model"), tmp_path / "text", tmp_path / "room"
    text.write_text("To be, or not to be, that is the question. " * 40)
    arguments = (model, "--steps", str(STEPS), "--text", text, "--directory", room)
    done = measured(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout
    assert "one job on both machines" in said and f"| {STEPS} |" in said
    assert "one checkpoint root by train, audit, receipt: 0x" in said
    assert "one final state root by train, audit, receipt: 0x" in said and "Right: all 1 intervals" in said
    assert float(said.split("largest difference ")[1]) < FORMAT_ALONE
    costs = [line for line in said.splitlines() if line.endswith(" GB |")]
    assert len(costs) == 7
    assert measured(*arguments).stdout == said, "nothing is done twice"

    # The losses would be found to differ if the run had other batches, or trained nothing.
    ours = [entry.loss for entry in read_history(room / "trained") if entry.loss is not None]
    job = room / "job of native, one thread"
    assert largest_difference(ours, plain_losses(job, model, text, STEPS)) < FORMAT_ALONE
    assert largest_difference(ours, plain_losses(job, model, text, STEPS, moved=1)) > 10 * FORMAT_ALONE
    assert largest_difference(ours, plain_losses(job, model, text, STEPS, learning_rate=0.0)) > 4 * FORMAT_ALONE


def refused(
    script: ModuleType, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """What a script says about wrong arguments, before it measures anything."""
    monkeypatch.setattr(sys, "argv", [script.__name__, *arguments])
    monkeypatch.setattr(script, "measure", lambda *_: pytest.fail("measures"))
    with pytest.raises(SystemExit) as ended:
        script.main()
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A folder that looks like a model from outside, and a text."""
    model, text = tmp_path / "model", tmp_path / "text"
    model.mkdir()
    (model / "config.json").write_text("{}")
    text.write_text("To be")
    return model, text


def test_a_folder_of_other_results_is_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    model, text = files
    folder = tmp_path / "room"
    Room(folder, source_of(model, text, 40))
    Room(folder, source_of(model, text, 40))
    with pytest.raises(ValueError, match="room was made with another number of steps: choose an empty folder"):
        Room(folder, source_of(model, text, 20))
    done = measured(model, "--text", text, "--steps", "20", "--directory", folder)
    assert done.returncode == 2 and "another number of steps: choose" in done.stderr, done.stderr
    text.write_text("Not to be")
    with pytest.raises(ValueError, match="another text: choose"):
        Room(folder, source_of(model, text, 40))
    (model / "model.safetensors").write_bytes(b"1")
    with pytest.raises(ValueError, match="another model and another text: choose"):
        Room(folder, source_of(model, text, 40))
    (folder / "source.json").unlink()
    (folder / "costs.json").write_text("{}")
    with pytest.raises(ValueError, match="holds something else"):
        Room(folder, source_of(model, text, 40))


def test_roots_that_differ_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(checkpoint: int, final: int) -> str:
        return f"Audited\n  checkpoint root   0x{checkpoint:064x}\n  final state root  0x{final:064x}\n  log   right\n"

    assert compare_roots({"train": printed(1, 2), "audit": printed(1, 2)})
    assert capsys.readouterr().out.count("by train, audit: 0x") == 2
    for other in (printed(3, 2), printed(1, 3)):
        assert not compare_roots({"train": printed(1, 2), "audit": other})
        assert capsys.readouterr().out.count("root by each: train 0x") == 1
    with pytest.raises(SystemExit, match="no checkpoint root"):
        compare_roots({"train": "Trained"})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{model}", "--text", "/nowhere"], "--text: there is no file /nowhere"),
        (["{model}", "--steps", "0"], "--steps: 0 is no number of steps"),
        (["{model}", "--directory", "{model}"], "model holds something else: choose an empty folder"),
        (["/nowhere"], "/nowhere is no folder with a model: `huggingface-cli download"),
        ([], "required: MODEL"),
    ],
)
def test_wrong_arguments_of_a_fine_tune_are_refused_before_it(
    arguments: list[str],
    sentence: str,
    files: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [argument.format(model=files[0]) for argument in arguments]
    assert sentence in refused(measure_fine_tune, given, monkeypatch, capsys)


def test_a_task_without_its_files_is_refused(files: tuple[Path, Path]) -> None:
    from fine_tuning.lora_task import task

    with pytest.raises(CaptureError, match="there is no folder /nowhere with a model"):
        task("/nowhere")
    with pytest.raises(CaptureError, match="there is no file /nowhere"):
        task(str(files[0]), "/nowhere")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--text", "/nowhere"], "--text: /nowhere cannot be read"),
        (["--steps", "0"], "--steps: 0 is no number of steps"),
        (["--seeds", "0"], "--seeds: 0 gives no two seeds"),
        (["--seeds", "1"], "--seeds: 1 gives no two seeds"),
        (["--write", "/nowhere/at/all"], "--write: there is no folder /nowhere/at/all"),
        (["--write", "."], "--write: matplotlib is not there"),
    ],
)
def test_wrong_arguments_of_a_comparison_are_refused_before_training(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert sentence in refused(compare_bf16_losses, arguments, monkeypatch, capsys)
