"""Programs of models that are kept between processes are taken where all that they depend on is the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from roundlog.generation import Generator, kept_programs, step_program
from roundlog.generation.kept_programs import name_of
from torch import nn

from tests.engine.generation.small_llama import small_llama


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kept_programs, "_place", lambda: tmp_path)
    return tmp_path


def model(**more: Any) -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(small_llama(23, max_position_embeddings=64, **more)).eval()


def text(of: Any) -> list[int]:
    return Generator(of, positions=12, chunk=4, is_as_read=True).generate([3, 1, 4], new_tokens=5).tokens


def captures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of every capture from now on, the class of its module."""
    found: list[str] = []
    capture = step_program.capture

    def noted(make: Any, *more: Any, **options: Any) -> Any:
        found.append(type(make().model).__name__)
        return capture(make, *more, **options)

    monkeypatch.setattr(step_program, "capture", noted)
    return found


def test_a_second_start_captures_nothing_and_writes_the_same_text(monkeypatch: pytest.MonkeyPatch) -> None:
    first, found = text(model()), captures(monkeypatch)
    assert text(model()) == first and not found


def damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [damaged, lambda path: path.write_bytes(b""), lambda path: path.unlink()])
def test_a_damaged_program_is_captured_again(
    spoil: Callable[[Path], None], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = text(model())
    whole = {path: path.read_bytes() for path in place.iterdir()}
    for path in whole:
        spoil(path)
    found = captures(monkeypatch)
    assert text(model()) == first and len(found) == len(whole)
    assert {path: path.read_bytes() for path in place.iterdir()} == whole


def another_buffer(one: Any) -> None:
    one.model.rotary_emb.inv_freq[0] += 0.5


def another_hook(one: Any) -> None:
    one.model.layers[0].register_forward_hook(lambda *given: None)


def another_forward(one: Any) -> None:
    one.model.layers[0].forward = lambda *given, **more: given[0]


class Other(nn.Linear):
    """A layer with code of its own."""


def another_class(one: Any) -> None:
    one.lm_head.__class__ = Other


@pytest.mark.parametrize(
    "change", [another_buffer, another_hook, another_forward, another_class, lambda one: one.half()]
)
def test_a_model_that_computes_something_else_has_another_name_or_none(change: Callable[[Any], object]) -> None:
    one, other = model(), model()
    assert name_of(one, 1) == name_of(other, 1) != name_of(one, 2)
    change(other)
    assert name_of(other, 1) != name_of(one, 1)
    assert name_of(model(rms_norm_eps=1e-3), 1) != name_of(one, 1) != name_of(model(inner=16), 1)
