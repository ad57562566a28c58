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
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.999])
def test_a_file_that_ends_early_is_refused(plain: Path, tmp_path: Path, share: float) -> None:
    data = plain.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[: int(share * len(data))])
    refused(tmp_path / "cut.gguf", "cannot be read", "fetch it again")


@pytest.mark.slow_but("tensors")
@pytest.mark.parametrize("place", ["tensors", "fields", "a text", "tokens", "types of tokens"])
def test_counts_that_the_file_has_no_room_for_are_refused(plain: Path, tmp_path: Path, place: str) -> None:
    data, path = plain.read_bytes(), tmp_path / "hostile.gguf"
    tokens, types = (data.index(name) + len(name) for name in (b"tokenizer.ggml.tokens", b"tokenizer.ggml.token_type"))
    places = {"tensors": 8, "fields": 16, "a text": 24, "tokens": tokens + 8, "types of tokens": types + 8}
    at = places[place]
    for count in ((1 << 63) - 1, 1 << 40):
        path.write_bytes(data[:at] + struct.pack("<Q", count) + data[at + 8 :])
        refused(path, "read", "fetch it again")


def test_other_versions_and_files_are_refused(plain: Path, tmp_path: Path) -> None:
    data, path = plain.read_bytes(), tmp_path / "other.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 1) + data[8:])
    refused(path, "version 1")
    path.write_bytes(b"PK" + data[2:])
    refused(path, "magic invalid")
    # A list of lists of lists.
    tokens = data.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens")
    path.write_bytes(data[: tokens + 4] + struct.pack("<I", 9) + data[tokens + 8 :])
    refused(path, "takes more than 10 s or 1024 MiB")


MAMBA = {
    **{"general.architecture": "mamba", "mamba.vocab_size": 258, "mamba.context_length": 64, "mamba.block_count": 1},
    **{"mamba.embedding_length": 32, "mamba.ssm.inner_size": 64, "mamba.ssm.time_step_rank": 2},
    **{"mamba.ssm.conv_kernel": 4, "mamba.attention.layer_norm_rms_epsilon": 1e-5, "mamba.ssm.state_size": 16},
    **dict.fromkeys(("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size")),
    **dict.fromkeys(("attention.head_count", "attention.head_count_kv", "rope.dimension_count")),
    **dict.fromkeys(("llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base")),
}
FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "a million layers": ({"block_count": 10**6}, "takes more than 10 s or 1024 MiB"),
    "900 layers": ({"block_count": 900}, "numbers, more than the 35,104"),
    "a width of 2^30": ({"embedding_length": 1 << 30}, "numbers, more than the 35,104"),
    "an unknown architecture": ({"general.architecture": "xllama"}, "xllama"),
    "a number as a text": ({"block_count": "2"}, "num_hidden_layers"),
    "a number of tokens": ({"tokenizer.ggml.tokens": 8_000_000}, "cannot be read"),
    "a state of four million": (MAMBA | {"mamba.ssm.state_size": 4_000_000}, "numbers, more than the 35,104"),
    "a negative number": ({"feed_forward_length": -64}, "negative"),
    "words, and a list of one architecture": (
        {"general.architecture": ["llama"], "vocab_size": 8_000_000},
        "numbers, more than the 35,104",
    ),
    "fields of a name that is changed": ({"general.name": "mistral", "mistral.block_count": 3}, "more than the 35,104"),
}


@pytest.mark.slow_cases("a million layers", "900 layers", "a state of four million")
@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_asks_for_too_much_is_refused(tmp_path: Path, name: str) -> None:
    changes, said = FIELDS[name]
    write_gguf(tmp_path / "hostile.gguf", changes=changes)
    refused(tmp_path / "hostile.gguf", said)


def test_tensors_that_share_their_bytes_are_refused(plain: Path, tmp_path: Path) -> None:
    data, reader = bytearray(plain.read_bytes()), gguf.GGUFReader(plain)
    for tensor in reader.tensors:
        place = tensor.field.offset + sum(part.nbytes for part in tensor.field.parts) - 8
        data[place : place + 8] = bytes(8)
        if tensor.name == "output.weight":
            data[place - 20 : place - 4] = struct.pack("<2Q", 32, 1097)  # all of the file once more
    (tmp_path / "shared.gguf").write_bytes(data)
    refused(tmp_path / "shared.gguf", "its tensors have more bytes than it has")


@pytest.mark.slow
def test_tensors_that_do_not_fit_the_architecture_are_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "narrow.gguf", changes={"feed_forward_length": 48})
    refused(tmp_path / "narrow.gguf", "cannot be read", "or have it in another shape")
    write_gguf(tmp_path / "shallow.gguf", changes={"block_count": 3})
    refused(tmp_path / "shallow.gguf", "asks for 44,384 numbers, more than the 35,104 that its weights hold")
