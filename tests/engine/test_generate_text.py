"""The script that generates text: from a folder with a model to a text and a root, which an audit comes to."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import generate_text
import pytest
from roundlog import Job
from roundlog.training.auditor import Auditor

from tests.engine.test_fine_tune import model_in

pytest.importorskip("transformers")


def generated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str | Path
) -> tuple[str, str]:
    """The text, and the root, that the script prints."""
    monkeypatch.setattr(sys, "argv", ["generate_text.py", *map(str, words)])
    generate_text.main()
    said = capsys.readouterr().out
    found = re.fullmatch(r"(.*)\nroot ([0-9a-f]{64})\n\d+ s to capture .* tokens read or written in .* s\n", said, re.S)
    assert found is not None, said
    return found[1], found[2]


def test_a_text_is_generated_and_an_audit_comes_to_its_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_in(tmp_path / "model")
    text, root = generated(monkeypatch, capsys, model, "So let there be", "--new-tokens", "5", "--directory", tmp_path)
    job = Job.read(tmp_path / "job")
    assert Auditor(job, tmp_path / "audit").run().checkpoint_root.hex() == root
    from transformers import AutoModelForCausalLM

    tokenizer = generate_text.tokenizer_of(str(model))
    prompt = generate_text.prompt_of(tokenizer, "So let there be")
    assert job.spec.steps == len(prompt) + 4 >= 10
    assert generate_text.text_of(str(model), job, tmp_path / "run") == text
    assert AutoModelForCausalLM.from_pretrained(model).dtype in {x.dtype for x in job.initial.values()}
    with pytest.raises(SystemExit, match="has a job or a run already: choose another folder"):
        generated(monkeypatch, capsys, model, "So", "--directory", tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere", "So"], "there is no folder nowhere with a model: generate_text.py says how to fetch one"),
        (["{model}", "So", "--top-p", "2"], "top_p is 2.0: give a number, above 0, up to 1"),
    ],
)
def test_a_bad_word_ends_the_script_in_one_sentence(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = model_in(tmp_path / "model")
    with pytest.raises(SystemExit, match=re.escape(said)):
        generated(monkeypatch, capsys, *(word.format(model=model) for word in words))
