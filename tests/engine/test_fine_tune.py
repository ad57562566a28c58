"""The measurement of a fine-tune, on a model of the same kind with few weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytest.importorskip("peft")


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


@pytest.mark.slow
def test_a_script_comes_to_one_root_on_two_machines_and_a_receipt(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("To be, or not to be, that is the question. " * 40)
    done = measured(model_in(tmp_path / "model"), "--steps", "2", "--text", text, "--directory", tmp_path / "room")
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout
    assert "one job on both machines" in said and "| 2 |" in said
    assert float(said.split("largest difference ")[1]) < 0.02
    costs = [line for line in said.splitlines() if line.endswith(" GB |")]
    assert len(costs) == 7
    again = measured(tmp_path / "model", "--steps", "2", "--text", text, "--directory", tmp_path / "room")
    assert again.stdout == said, "nothing is done twice"


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    done = measured(tmp_path)
    assert done.returncode == 2 and "huggingface-cli download" in done.stderr and "Traceback" not in done.stderr
