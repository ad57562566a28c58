"""`tiebreak model`: GGUF as a folder of safetensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.client.cli.cli_world import Run, refused
from tests.client.cli.text_world import generators_kept
from tests.engine.generation.small_gguf import write_gguf

pytest.importorskip("transformers")
pytest.importorskip("gguf")

REAL = Path(__file__).resolve().parents[3] / "build/models/SmolLM2-135M-Instruct-GGUF"
"""Where `make smollm` puts it."""
REAL_WEIGHTS = "0x30ef5fa3ed2ea03d9f140a3734ee8ddb23977a9c496abfb6256144b35a107e8d"
"""In BF16."""


def test_a_gguf_file_becomes_a_folder_with_the_same_weights_and_text(run: Run, tmp_path: Path) -> None:
    source, out = tmp_path / "small.gguf", tmp_path / "made" / "small"
    write_gguf(source, "Q8_0")
    made = json.loads(run("model", "export", source, "--out", out, "--dtype", "bf16", "--json").stdout)
    assert made["model"] == str(out) and list(out.parent.iterdir()) == [out]
    words = ("--prompt", "he", "--max-new-tokens", 5, "--receipt")
    texts = list[str]()
    with generators_kept():
        for model in (source, out):
            written = tmp_path / f"{model.name}.json"
            done = run("generate", "--model", model, *words, written)
            assert done.exit_code == 0 and "it/s" not in done.stderr, done.output
            texts.append(done.stdout)
            assert json.loads(written.read_text())["model"]["model_weight_hash"] == made["model_weight_hash"]
            assert run("verify", written, "--model", model).exit_code == 0
    assert texts[0] == texts[1]
    refused(run("verify", tmp_path / "small.json", "--model", source), "whose config_hash is not the receipt's")
    refused(run("model", "export", source, "--out", out), "is there already", "name another one")
    source.write_bytes(source.read_bytes()[:100])
    refused(run("model", "export", source, "--out", tmp_path / "new"), "is none that could be read", "fetch it again")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["made"], "nothing is left"


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="`make smollm` has not been run")
def test_the_real_model_says_what_it_said(run: Run, tmp_path: Path) -> None:
    out, receipt = tmp_path / "real", tmp_path / "text.json"
    made = json.loads(run("model", "export", REAL, "--out", out, "--dtype", "bf16", "--json").stdout)
    assert made["model_weight_hash"] == REAL_WEIGHTS
    words = ("--prompt", "What is the capital of France?", "--max-new-tokens", 12, "--receipt", receipt)
    done = run("generate", "--model", out, *words)
    assert done.stdout == "The capital of France is Paris.\n", done.output
    assert run("verify", receipt, "--model", out).exit_code == 0
