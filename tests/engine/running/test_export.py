"""A trained model as a file and in a module: its own values, by its own names, and nothing from a hostile directory."""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path
from typing import Any

import pytest
import roundlog
import torch
from roundlog.capture import CaptureError
from roundlog.capture.captured import model_tensors
from roundlog.storage import StorageError
from roundlog.training.export import ExportError, trained_state
from safetensors.torch import load_file, load_model
from torch import nn

from tests.engine.tasks import GPT, ConvNet
from tests.engine.trainings import run_of


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b""


def assert_equal(model: nn.Module, wanted: nn.Module, *, transient: bool) -> None:
    ours, theirs = model.state_dict(), wanted.state_dict()
    assert ours.keys() == theirs.keys()
    for name in theirs:
        assert bits(ours[name]) == bits(theirs[name]), name
    if transient:
        for (name, one), two in zip(model_tensors(model).items(), model_tensors(wanted).values(), strict=True):
            assert bits(one) == bits(two), name


def random_values(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """FP32 numbers among which are zeros of both signs, infinities, NaN, and the smallest numbers."""
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45, 3e38])
    chosen = torch.randint(0, 20, shape, generator=generator)
    return torch.where(chosen < len(special), special[chosen % len(special)], torch.randn(shape, generator=generator))


def random_model(seed: int, values: int) -> nn.Module:
    """A module of random structure: nested, with tied parameters, shared modules, buffers of all dtypes, saved or not,
    and such with several names. Empty tensors have one name each: safetensors does not tie them. values: seed of its
    numbers."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(values)
    modules, parameters, buffers = [nn.Module()], list[nn.Parameter](), list[torch.Tensor]()
    for number in range(rng.randrange(1, 9)):
        parent, name = rng.choice(modules), rng.choice(("a", "weight", "b_1", "ü")) + str(number)
        what = rng.randrange(5)
        shape = rng.choice([(), (1,), (2, 3), (5,)] + [(0,), (3, 0)] * (parent is modules[0]))
        if what == 0:
            modules.append(nn.Module())
            parent.add_module(name, modules[-1])
        elif what == 1 and len(modules) > 1 and parent is modules[0]:
            parent.add_module(name, rng.choice(modules[1:]))
        elif what == 2:
            parameters.append(nn.Parameter(random_values(shape, generator)))
            parent.register_parameter(name, rng.choice(parameters) if parameters[-1].numel() else parameters.pop())
        else:
            made = random_values(shape, generator)
            buffers.append(rng.choice((made, made.isfinite(), (made.nan_to_num(0, 9, -9) * 2**40).long())))
            chosen = rng.choice(buffers) if made.numel() else buffers.pop()
            parent.register_buffer(name, chosen, persistent=rng.random() < 0.5)
    modules[0].register_parameter("last", nn.Parameter(random_values((2,), generator)))
    return modules[0]


@pytest.mark.parametrize("seed", range(6))
def test_any_module_comes_back_as_it_was_trained(seed: int, tmp_path: Path) -> None:
    trained = random_model(seed, values=1)
    run, file = run_of(trained, tmp_path / "run"), tmp_path / "model.safetensors"
    state = trained_state(run)
    state.export(file)
    model = random_model(seed, values=2)
    roundlog.load_into(model, run)
    assert_equal(model, trained, transient=True)
    model = random_model(seed, values=2)
    assert load_model(model, str(file)) == (set(), [])
    assert_equal(model, trained, transient=False)
    names = trained.state_dict().keys()
    found = load_file(file)
    assert found.keys() <= names and state.steps == 4
    if len({id(tensor) for tensor in trained.state_dict(keep_vars=True).values()}) == len(names):
        random_model(seed, values=2).load_state_dict(found, strict=True)


def test_tensors_that_are_tied_by_their_memory_come_back(tmp_path: Path) -> None:
    """As capture ties them: two parameters, or a parameter and a buffer, may be several objects of one memory."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(3, 3, bias=False)
            self.two = nn.Linear(3, 3, bias=False)
            self.two.weight = nn.Parameter(self.one.weight.data)
            self.register_buffer("shared", self.one.weight.data)

    trained, model, other = Tied(), Tied(), Tied()
    run, file = run_of(trained, tmp_path), tmp_path / "model.safetensors"
    assert "parameter/two.weight" not in load_file(run / "checkpoints" / "00000004.safetensors")
    roundlog.load_into(model, run)
    assert_equal(model, trained, transient=True)
    trained_state(run).export(file)
    assert load_model(other, str(file)) == (set(), [])
    assert_equal(other, trained, transient=True)


def test_the_newest_state_that_is_kept_is_taken_unless_another_is_named(tmp_path: Path) -> None:
    for steps in (4, 12, 123456789):
        run_of(ConvNet(), tmp_path, steps=steps)
    for name in ("notes.safetensors", "99999999.partial", "1.safetensors", "0000000999999999.safetensors"):
        (tmp_path / "checkpoints" / name).write_bytes(b"")
    assert trained_state(tmp_path).steps == 123456789
    assert trained_state(tmp_path, 12).path.name == "00000012.safetensors"
    with pytest.raises(ExportError, match="has kept no state after 5 steps: choose one of 4, 12, 123456789"):
        trained_state(tmp_path, 5)


@pytest.mark.parametrize("kind", ["tied", "rotary", "classifier"])
def test_from_pretrained_reads_an_exported_model(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.engine.capture.random_trainers import MODELS

    make, data = MODELS[kind]
    torch.manual_seed(3)
    trained, rows = make(0.0).eval(), data(2)
    trained_state(run_of(trained, tmp_path / "run")).export(tmp_path / "model.safetensors")
    trained.config.save_pretrained(tmp_path)
    read, told = type(trained).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys")), told
    assert read.state_dict().keys() == trained.state_dict().keys()
    assert all(torch.equal(one, read.state_dict()[name]) for name, one in trained.state_dict().items())
    assert (read.get_output_embeddings() is None) == (trained.get_output_embeddings() is None)
    if kind == "tied":
        assert read.lm_head.weight is read.transformer.wte.weight
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    with torch.no_grad():
        assert torch.equal(read(**batch).logits, trained(**batch).logits)


# What is refused, with nothing changed.


def test_directories_without_a_state_are_refused(tmp_path: Path) -> None:
    for place, words in ((tmp_path / "absent", "does not exist"), (tmp_path, "is not the directory of a run")):
        with pytest.raises(ExportError, match=words) as caught:
            trained_state(place)
        assert "\n" not in str(caught.value) and ": name the directory of a run" in str(caught.value)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ExportError, match="has kept no checkpoint yet: let it reach its first one"):
        trained_state(tmp_path)
    run_of(ConvNet(), tmp_path)
    with pytest.raises(ExportError, match="is no directory of a run, so there are no states"):
        trained_state(tmp_path / "checkpoints" / "00000004.safetensors", 4)
    with pytest.raises(CaptureError, match=r"the model is a dict: give a torch.nn.Module"):
        roundlog.load_into({}, tmp_path)  # type: ignore[arg-type]


def test_places_that_are_none_for_a_model_are_refused(tmp_path: Path) -> None:
    state = trained_state(run_of(ConvNet(), tmp_path / "run"))
    before = state.path.read_bytes()
    pipe = tmp_path / "pipe.safetensors"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(tmp_path / "run" / "checkpoints")
    for place, words in (
        (tmp_path, "is a directory: name a file in it"),
        (tmp_path / "model.bin", "ends in .safetensors"),
        (Path("/dev/null"), "ends in .safetensors"),
        (pipe, "is no place for a model"),
        (state.path, "would lie among the trained states"),
        (tmp_path / "run" / "checkpoints" / "model.safetensors", "would lie among the trained states"),
        (tmp_path / "link" / "model.safetensors", "would lie among the trained states"),
    ):
        with pytest.raises(ExportError, match=words):
            state.export(place)
    with pytest.raises(ExportError, match="would lie among"):
        trained_state(state.path).export(tmp_path / "link" / state.path.name)
    with pytest.raises(StorageError, match="cannot be written"):
        state.export(tmp_path / "absent" / "model.safetensors")
    assert state.path.read_bytes() == before and len(list(state.path.parent.iterdir())) == 1
    state.export(tmp_path / "run" / "model.safetensors")  # beside them it may


def test_a_state_of_another_model_changes_nothing(tmp_path: Path) -> None:
    run = run_of(ConvNet(), tmp_path)
    for model, words in ((GPT(), "which the model has not"), (nn.Linear(2, 2), "which the model has not")):
        wanted = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with pytest.raises(CaptureError, match=words):
            roundlog.load_into(model, run)
        assert all(torch.equal(tensor, wanted[name]) for name, tensor in model.state_dict().items())


Header = dict[str, Any]


def forged(path: Path, header: object, data: bytes = bytes(8)) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> Header:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


HOSTILE: dict[str, tuple[object, str]] = {
    "metadata": ({"__metadata__": {"format": "pt"}, "parameter/w": entry()}, "has metadata"),
    "a name of another making": ({"w": entry()}, "is named otherwise than in a trained state"),
    "a name twice": ({"parameter/w": entry(), "buffer/w": entry(offsets=(8, 16))}, "has w twice"),
    "the name of metadata": ({"parameter/__metadata__": entry()}, "which no model can have"),
    "half a character": ({"parameter/\ud800": entry()}, "which no model can have"),
    "a name of two lines": ({"parameter/a\nb": entry()}, "which no model can have"),
    "slots alone": ({"slot/w/exp_avg": entry()}, "has no parameter and no buffer"),
    "too many axes": ({"parameter/w": entry(shape=(1,) * 17)}, "16 axes"),
    "exabytes": ({"parameter/w": entry(shape=(2**60,), offsets=(0, 2**62))}, "elements"),
    "no JSON": (b"{", "is not JSON"),
    "no name": ({"parameter/": entry()}, "which no model can have"),
    "another dtype": ({"parameter/w": entry("F8_E4M3", (8,))}, "dtype 'F8_E4M3'"),
    "no object": ({"parameter/w": 5}, "without a dtype"),
    "no shape": ({"parameter/w": {"dtype": "F32"}}, "has shape None"),
    "a negative axis": ({"parameter/w": entry(shape=(-2,))}, "has shape"),
    "an axis that is a truth": ({"parameter/w": entry(shape=(True,))}, "has shape"),
    "a huge axis beside none": ({"parameter/w": entry(shape=(0, 2**62), offsets=(0, 0))}, "elements"),
    "many items": (b"[" + b"0," * (1 << 23) + b"0]", "items"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_state_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    header, words = HOSTILE[name]
    (tmp_path / "checkpoints").mkdir()
    path = forged(tmp_path / "checkpoints" / "00000001.safetensors", header)
    for source in (tmp_path, path):
        with pytest.raises(ExportError, match=words) as caught:
            trained_state(source)
        sentence = str(caught.value)
        assert "\n" not in sentence and len(sentence) < 1000 and str(path) in sentence and ": " in sentence
