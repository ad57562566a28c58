"""Random files of strangers: each is refused in a sentence, or is the honest model, in bounded time and memory."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from roundlog.generation import load_model

from tests.engine.generation.random_models import READ_OTHERWISE, random_folder, random_gguf, read_apart
from tests.engine.generation.small_gguf import write_gguf

pytest.importorskip("transformers")
pytest.importorskip("gguf")

FOLDER = Path(__file__).resolve().parents[3] / "conformance" / "models" / "llama"
FILES = int(os.environ.get("RANDOM_MODELS", "24"))
"""Files of either kind; 2,000 of GGUF take a quarter of an hour."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("kind", ["gguf", "folder"])
def test_a_random_model_is_a_sentence_or_the_honest_one(kind: str, half: int, tmp_path: Path) -> None:
    honest = FOLDER
    if kind == "gguf":
        honest = tmp_path / "honest.gguf"
        write_gguf(honest)
    right = load_model(honest).identity.model_weight_hash.hex()
    counts, seconds, memory = Counter[str](), list[float](), list[int]()
    for seed in range(half, FILES, 2):
        path = tmp_path / f"{seed}"
        changed = (random_gguf if kind == "gguf" else random_folder)(honest, path, seed)
        found = read_apart(path)
        assert "\n" not in found.said and len(found.said) < 700, (seed, changed, found)
        assert found.said or found.root, (seed, changed, found)
        if kind == "gguf" and found.root and not any(part in name for part in READ_OTHERWISE for name in changed):
            assert found.root == right, (seed, changed)
        assert found.memory < 1 << 30 and found.seconds < 120, (seed, changed, found)
        counts["loaded" if found.root else found.said.replace(str(path), "")[:60]] += 1
        seconds.append(found.seconds)
        memory.append(found.memory)
        if path.is_file():
            path.unlink()
    print(f"{kind}: {sum(seconds):.0f} s, longest {max(seconds):.1f} s, memory {max(memory) >> 20} MB, {counts}")
    assert 0 < counts["loaded"] < len(seconds)
