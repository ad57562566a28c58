"""Folders that ask for more than any model needs are refused in one sentence, before memory or time is spent."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from roundlog.generation import FolderError, load_model

pytest.importorskip("transformers")

MODEL = Path(__file__).resolve().parents[3] / "conformance" / "models" / "llama"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


def change(path: Path, changes: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refused(folder: Path, *said: str) -> None:
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FolderError) as refusal:
        load_model(folder)
    words = str(refusal.value)
    assert all(one in words for one in said) and "\n" not in words and len(words) < 700, words
    assert time.monotonic() - began < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000, "less than 600 MB more"


BOUND = "reading its configuration and tokenizer takes more than 10 s or 1024 MiB"
CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "a million layers": ({"num_hidden_layers": 10**6}, BOUND),
    "a width of 10^12": ({"hidden_size": 10**12}, "asks for 550,000,000,000,000 numbers"),
    "a width of more digits than Python reads": ({"hidden_size": 0}, "Exceeds the limit"),
    "many words": ({"vocab_size": 1 << 24}, "asks for 268,440,144 numbers"),
    "lists times lists": ({"model_type": "gpt_neo", "attention_types": [[[1] * 200_000, 1000]]}, BOUND),
}


@pytest.mark.slow_cases("a million layers", "lists times lists")
@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_that_asks_for_too_much_is_refused(folder: Path, name: str) -> None:
    changes, said = CONFIGS[name]
    change(folder / "config.json", changes)
    if "digits" in name:
        text = (folder / "config.json").read_text()
        (folder / "config.json").write_text(text.replace('"hidden_size": 0', '"hidden_size": ' + "9" * 10_000))
    refused(folder, said)


def test_configs_of_real_models_are_taken(folder: Path) -> None:
    change(folder / "config.json", {"max_position_embeddings": 10_485_760, "rope_theta": 3_580_165_449})
    change(folder / "config.json", {"rope_parameters": {"rope_type": "default", "rope_theta": 283_461_213}})
    assert load_model(folder).stop == (0, 1, 14, 31, 199)


def deep(path: Path) -> None:
    path.write_text('{"a":' * 100_000 + "1" + "}" * 100_000)


def many_lists(path: Path) -> None:
    """64 bytes of memory for each three of the file's."""
    path.write_text('{"decoder": [' + "[]," * 20_000_000 + "[]]}")


TOKENIZERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "millions of lists": (many_lists, BOUND),
    "what is no JSON": (lambda path: path.write_text('{"a":'), "cannot be read"),
}


@pytest.mark.slow_cases("millions of lists")
@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_that_asks_for_too_much_is_refused(folder: Path, name: str) -> None:
    bend, said = TOKENIZERS[name]
    bend(folder / "tokenizer.json")
    refused(folder, said)


@pytest.mark.slow
def test_deep_json_is_refused(tmp_path: Path) -> None:
    """In a process of its own: torch lets Python recurse deeper than its stack is."""
    files = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
    for file in files:
        deep(Path(shutil.copytree(MODEL, tmp_path / file)) / file)
    code = (
        "import sys, pathlib\nfrom roundlog.generation import FolderError, load_model\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n        load_model(pathlib.Path(name))\n    except FolderError as error:\n        print(error)\n"
    )
    command = [sys.executable, "-c", code, *(tmp_path / file for file in files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == len(files) and max(map(len, lines)) < 700, done.stderr[-500:]
