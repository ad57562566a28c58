"""Models in GGUF files: their weights, their hashes, a text of theirs, and files that are damaged or hostile."""

from __future__ import annotations

import builtins
import shutil
import struct
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog.generation import FolderError, Generator, check_text, load_model, make_receipt, prompt_tokens, save_model
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


def test_a_text_of_a_packed_model_is_that_of_the_folder_made_of_it(tmp_path: Path) -> None:
    write_gguf(tmp_path / "packed.gguf", "Q4_1")
    packed = load_model(tmp_path / "packed.gguf")
    (tmp_path / "out").mkdir()
    saved = save_model(packed, tmp_path / "out")
    plain = load_model(tmp_path / "out", name="packed.gguf")
    assert plain.identity == saved and saved.config_hash != packed.identity.config_hash
    assert saved.model_weight_hash == packed.identity.model_weight_hash
    prompt = prompt_tokens(packed.tokenizer, "he")
    first, second = (Generator(one.model, positions=16) for one in (packed, plain))
    text = first.generate(prompt, new_tokens=6, stop=packed.stop)
    assert text == second.generate(prompt, new_tokens=6, stop=plain.stop)
    receipt = make_receipt(
        packed, first, prompt, text, sampling=text_sampling(), seed=0, max_new_tokens=6, tiebreak_version="0"
    )
    assert receipt.dtype == "bf16" and check_text(receipt, second, stop=plain.stop).is_right


def text_sampling() -> Any:
    from roundlog.capture.huggingface import Sampling

    return Sampling()


def refused(path: Path, *parts: str) -> None:
    started = time.monotonic()
    with pytest.raises(FolderError) as found:
        load_model(path)
    assert all(part in str(found.value) for part in parts), str(found.value)
    assert len(str(found.value)) < 700 and "\n" not in str(found.value)
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("share", [0, 0.0001, 0.01, 0.1, 0.5, 0.9, 0.999])
def test_a_file_that_ends_early_is_refused(plain: Path, tmp_path: Path, share: float) -> None:
    data = plain.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[: int(share * len(data))])
    refused(tmp_path / "cut.gguf", "is no GGUF file that could be read", "fetch it again")


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
            refused(path, "is no GGUF file", said)
    path.write_bytes(b"GGUF" + struct.pack("<I", 1) + data[8:])
    refused(path, "version 1")
    path.write_bytes(b"PK" + data[2:])
    refused(path, "does not begin as GGUF does")
    # A list of lists of lists.
    path.write_bytes(data[: tokens + 4] + struct.pack("<I", 9) + data[tokens + 8 :])
    refused(path, "list of an unknown type 9")


@pytest.mark.parametrize(
    "name", ["block_count", "embedding_length", "feed_forward_length", "attention.head_count", "vocab_size"]
)
def test_a_model_larger_than_its_tensors_is_not_built(tmp_path: Path, name: str) -> None:
    write_gguf(tmp_path / "large.gguf", changes={name: 1 << 30})
    refused(tmp_path / "large.gguf", f"llama.{name} that its tensors have no room for")


def test_tensors_that_do_not_fit_the_architecture_are_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "narrow.gguf", changes={"feed_forward_length": 48})
    refused(tmp_path / "narrow.gguf", "cannot be read")
    write_gguf(tmp_path / "shallow.gguf", changes={"block_count": 3})
    refused(tmp_path / "shallow.gguf", "cannot be read", "lack model.layers.2")


@pytest.mark.slow
def test_a_file_with_any_byte_changed_is_a_model_or_a_sentence(plain: Path, tmp_path: Path) -> None:
    data = bytearray(plain.read_bytes())
    end = data.index(b"output.weight") + 64
    generator, path, told = torch.Generator().manual_seed(1), tmp_path / "changed.gguf", 0
    for place in torch.randint(4, end, (60,), generator=generator).tolist():
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            load_model(path)
        except FolderError as error:
            told += 1
            assert len(str(error)) < 700
    assert told > 10


def test_without_gguf_one_sentence_says_what_to_install(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any, **more: Any) -> Any:
        if name == "gguf":
            raise ModuleNotFoundError("No module named 'gguf'", name="gguf")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    refused(plain, "needs the package gguf", "pip install 'tiebreak[gguf]'")
