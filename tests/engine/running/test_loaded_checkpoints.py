"""Fine-tuning starts from a safetensors file, whole and of this very model, or not at all."""

import copy
import json
import struct
from pathlib import Path

import pytest
import torch
from roundlog import load_checkpoint
from roundlog.capture import CaptureError
from safetensors.torch import save_file, save_model
from torch import nn

from tests.engine.tasks import GPT, ConvNet


def other(make) -> nn.Module:
    torch.manual_seed(99)
    model = make()
    for buffer in model.buffers():
        buffer.add_(1)
    return model


def assert_equal(a: nn.Module, b: nn.Module) -> None:
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.equal(x, y), name


@pytest.mark.parametrize("make", [ConvNet, GPT])
def test_every_parameter_and_buffer_is_loaded(make, tmp_path: Path) -> None:
    trained, model = other(make), make()
    save_model(trained, str(tmp_path / "model.safetensors"), metadata={"format": "pt"})
    load_checkpoint(model, tmp_path / "model.safetensors")
    assert_equal(model, trained)


def test_tied_tensors_may_have_one_name_or_all(tmp_path: Path) -> None:
    trained, path = other(GPT), tmp_path / "model.safetensors"
    whole = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    for left_out in ("head.weight", "tokens.weight", None):
        save_file({name: tensor for name, tensor in whole.items() if name != left_out}, path)
        model = GPT()
        load_checkpoint(model, path)
        assert_equal(model, trained)
        assert model.head.weight is model.tokens.weight
    save_file({**whole, "head.weight": whole["head.weight"] + 1}, path)
    refused(GPT(), path, "two values for tokens.weight and head.weight, which are one tensor")


def refused(model: nn.Module, path: Path, message: str) -> None:
    before = copy.deepcopy(model)
    with pytest.raises(CaptureError, match=message) as caught:
        load_checkpoint(model, path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert_equal(model, before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head.bias": None}, r"lacks head.bias \(the only one\)"),
        ({"head.bias": None, "norm.running_var": None}, r"lacks \S+ \(and 1 more\)"),
        ({"extra.weight": torch.zeros(2)}, "has 'extra.weight', which the model has not"),
        ({"HEAD.bias": torch.zeros(5)}, "has 'HEAD.bias', which the model has not"),
        (
            {"head.bias": torch.zeros(6)},
            r"head.bias is torch.float32 \[6\] in .*, but torch.float32 \[5\] in the model",
        ),
        ({"head.bias": torch.zeros(5, 1)}, r"head.bias is torch.float32 \[5, 1\]"),
        ({"head.bias": torch.zeros(5, dtype=torch.bfloat16)}, r"head.bias is torch.bfloat16 \[5\]"),
        ({"norm.num_batches_tracked": torch.zeros(())}, "norm.num_batches_tracked is torch.float32"),
        ({"parameter/head.bias": torch.zeros(5)}, "has head.bias twice"),
        ({"slot/anything": torch.zeros(5), "head.bias": None}, "lacks head.bias"),
    ],
)
def test_missing_unexpected_and_misshapen_tensors_are_refused(change, message: str, tmp_path: Path) -> None:
    whole = other(ConvNet).state_dict() | change
    save_file({k: v.contiguous() for k, v in whole.items() if v is not None}, tmp_path / "model.safetensors")
    refused(ConvNet(), tmp_path / "model.safetensors", message)


def test_files_that_are_no_safetensors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    refused(ConvNet(), path, "cannot be read")
    refused(ConvNet(), tmp_path, "cannot be read")
    save_model(other(ConvNet), str(path))
    whole = path.read_bytes()
    header = json.dumps({"head.bias": {"dtype": "F32", "shape": [5], "data_offsets": [0, 1 << 60]}}).encode()
    for content in (
        b"",
        whole[:7],
        whole[:100],
        whole[:-1],
        whole + b"x",
        b"\x80\x02}q\x00.",
        struct.pack("<Q", 1 << 62) + b"{}",
        struct.pack("<Q", len(header)) + header,
    ):
        path.write_bytes(content)
        refused(ConvNet(), path, "cannot be read")
