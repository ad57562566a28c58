"""Models in GGUF files: their weights, their hashes, a text of theirs, and files that are damaged or hostile."""

from __future__ import annotations

import shutil
import struct
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog.generation import FolderError, load_model, prompt_tokens
from roundlog.generation.model_folder import weight_root

from tests.engine.generation.small_gguf import write_gguf

pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    write_gguf(path)
    return path


def test_weights_hashes_and_tokens_are_those_that_were_written(plain: Path, tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "again.gguf")
    loaded = load_model(plain, dtype="fp32")
    assert loaded.identity.model_weight_hash == weight_root(model)
    whole = sha256(plain.read_bytes()).digest()
    assert (loaded.identity.config_hash, loaded.identity.tokenizer_hash) == (whole, whole)
    assert loaded.identity.name == "small.gguf" and loaded.stop == (0,)
    tokens = prompt_tokens(loaded.tokenizer, [{"role": "user", "content": "he é"}])
    assert loaded.tokenizer.decode(tokens) == "<user>he é" and tokens[-4] == 257, "the one token of two bytes"
    # A folder with the file is the same model, whatever else is in it.
    shutil.copy(plain, tmp_path / "folder.gguf")
    (tmp_path / "again.gguf").unlink()
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "another one"}')
    found = load_model(tmp_path, dtype="fp32", name="small.gguf")
    assert found.identity == loaded.identity and found.tokenizer.chat_template == loaded.tokenizer.chat_template


@pytest.mark.slow_but("Q8_0")
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "BF16"])
def test_packed_weights_are_rounded_once(tmp_path: Path, kind: str) -> None:
    write_gguf(tmp_path / "packed.gguf", kind)
    states = load_model(tmp_path / "packed.gguf").model.state_dict()
    reader = gguf.GGUFReader(tmp_path / "packed.gguf")
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.1.ffn_up.weight": "model.layers.1.mlp.up_proj.weight",
    }
    found = [one for one in reader.tensors if one.name in names]
    assert len(found) == 2
    for one in found:
        right = torch.from_numpy(gguf.quants.dequantize(one.data, one.tensor_type)).bfloat16()
        assert states[names[one.name]].dtype == torch.bfloat16
        assert torch.equal(states[names[one.name]], right.reshape(states[names[one.name]].shape))


def refused(path: Path, *parts: str) -> None:
    started = time.monotonic()
    with pytest.raises(FolderError) as found:
        load_model(path)
    assert all(part in str(found.value) for part in parts), str(found.value)
    assert len(str(found.value)) < 700 and "\n" not in str(found.value)
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.999])
def test_a_file_that_ends_early_is_refused(plain: Path, tmp_path: Path, share: float) -> None:
    data = plain.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[: int(share * len(data))])
    refused(tmp_path / "cut.gguf", "is none that could be read, since it", "fetch it again")


def test_counts_that_the_file_has_no_room_for_are_refused(plain: Path, tmp_path: Path) -> None:
    data, path = plain.read_bytes(), tmp_path / "hostile.gguf"
    tokens = data.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens")
    types = data.index(b"tokenizer.ggml.token_type") + len(b"tokenizer.ggml.token_type")
    places = {
        8: "tensors",
        16: "fields",
        24: "bytes of a text",
        tokens + 8: "entries of a list",
        types + 8: "entries of a list",
    }
    for place, said in places.items():
        for count in ((1 << 63) - 1, 1 << 40):
            path.write_bytes(data[:place] + struct.pack("<Q", count) + data[place + 8 :])
            refused(path, "is none that could be read", said)
    path.write_bytes(b"GGUF" + struct.pack("<I", 1) + data[8:])
    refused(path, "version 1")
    path.write_bytes(b"PK" + data[2:])
    refused(path, "does not begin as GGUF does")
    # A list of lists of lists.
    path.write_bytes(data[: tokens + 4] + struct.pack("<I", 9) + data[tokens + 8 :])
    refused(path, "list of an unknown type 9")


MAMBA = {
    **{"general.architecture": "mamba", "mamba.vocab_size": 258, "mamba.context_length": 64, "mamba.block_count": 1},
    **{"mamba.embedding_length": 32, "mamba.ssm.inner_size": 64, "mamba.ssm.time_step_rank": 2},
    **{"mamba.ssm.conv_kernel": 4, "mamba.attention.layer_norm_rms_epsilon": 1e-5, "mamba.ssm.state_size": 16},
    **dict.fromkeys(("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size")),
    **dict.fromkeys(("attention.head_count", "attention.head_count_kv", "rope.dimension_count")),
    **dict.fromkeys(("llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base")),
}
UNKNOWN = "that is not known, or is not of its type and in bounds"
FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "a million layers": ({"block_count": 10**6}, f"'llama.block_count' {UNKNOWN}"),
    "900 layers": ({"block_count": 900}, "numbers, more than the 35,104"),
    "a width of 2^30": ({"embedding_length": 1 << 30}, f"'llama.embedding_length' {UNKNOWN}"),
    "eight million words": ({"vocab_size": 8_000_000}, "numbers, more than the 35,104"),
    "an unknown architecture": ({"general.architecture": "xllama"}, "'general.architecture'"),
    "fields of another architecture": ({"mamba.ssm.state_size": 4_000_000}, f"'mamba.ssm.state_size' {UNKNOWN}"),
    "an unknown field": ({"llama.depth_of_everything": 3}, f"'llama.depth_of_everything' {UNKNOWN}"),
    "a number as a text": ({"block_count": "2"}, f"'llama.block_count' {UNKNOWN}"),
    "a fraction without an end": ({"llama.rope.freq_base": float("inf")}, f"'llama.rope.freq_base' {UNKNOWN}"),
    "a number of tokens": ({"tokenizer.ggml.tokens": 8_000_000}, f"'tokenizer.ggml.tokens' {UNKNOWN}"),
    "a long token": (
        {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a" * 400_000], "tokenizer.ggml.merges": None},
        "400000 bytes of a text, more than 4096",
    ),
    "a state of four million": (MAMBA | {"mamba.ssm.state_size": 4_000_000}, "numbers, more than the 35,104"),
    "a negative number": ({"feed_forward_length": -64}, f"'llama.feed_forward_length' {UNKNOWN}"),
    "a number as a list": ({"embedding_length": [32]}, f"'llama.embedding_length' {UNKNOWN}"),
    "words, and a list of one architecture": (
        {"general.architecture": ["llama"], "vocab_size": 8_000_000},
        "'general.architecture'",
    ),
    "fields of a name that is changed": (
        {"general.name": "mistral", "mistral.block_count": 3},
        "'mistral.block_count'",
    ),
    "numbers as tokens": ({"tokenizer.ggml.tokens": [1, 2]}, f"'tokenizer.ggml.tokens' {UNKNOWN}"),
}


@pytest.mark.slow_cases("900 layers", "eight million words", "a state of four million")
@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_no_reader_can_bound_is_refused(tmp_path: Path, name: str) -> None:
    changes, said = FIELDS[name]
    write_gguf(tmp_path / "hostile.gguf", changes=changes)
    refused(tmp_path / "hostile.gguf", said)


def test_fields_that_readers_pass_over_are_taken(plain: Path, tmp_path: Path) -> None:
    others = {"general.tags": ["a", "b"], "quantizers.name": "x", "quantize.imatrix.chunks_count": 7}
    others |= {
        "llama.rope.scaling.type": "yarn",
        "llama.expert_count": 0,
        "general.quantized_by": "x",
        "vocab_size": None,
    }
    write_gguf(tmp_path / "other.gguf", changes=others)
    assert (
        load_model(tmp_path / "other.gguf").identity.model_weight_hash == load_model(plain).identity.model_weight_hash
    )


def test_tensors_that_share_their_bytes_are_refused(plain: Path, tmp_path: Path) -> None:
    data, reader = bytearray(plain.read_bytes()), gguf.GGUFReader(plain)
    for tensor in reader.tensors:
        place = tensor.field.offset + sum(part.nbytes for part in tensor.field.parts) - 8
        data[place : place + 8] = bytes(8)
        if tensor.name == "output.weight":
            data[place - 20 : place - 4] = struct.pack("<2Q", 32, 1100)  # all of the file once more
    (tmp_path / "shared.gguf").write_bytes(data)
    refused(tmp_path / "shared.gguf", "it ends before its tensors do")


@pytest.mark.slow
def test_tensors_that_do_not_fit_the_architecture_are_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "narrow.gguf", changes={"feed_forward_length": 48})
    refused(tmp_path / "narrow.gguf", "cannot be read", "or have it in another shape")
    write_gguf(tmp_path / "shallow.gguf", changes={"block_count": 3})
    refused(tmp_path / "shallow.gguf", "asks for 44,384 numbers, more than the 35,104 that its weights hold")
