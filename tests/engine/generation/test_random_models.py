"""Random GGUF files of strangers, each read in a process of its own: each is refused in a sentence, or is
the honest model, in bounded time and memory."""

from __future__ import annotations

import json
import os
import random
import resource
import struct
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from roundlog.generation import FolderError, load_model, prompt_tokens, token_text
from roundlog.generation.gguf_file import installed_readers

from tests.engine.generation.small_gguf import write_gguf

pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")

_KINDS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_NUMBERS = [-1, 0, 1, 2, 3, 7, 32, 258, 4096, 65_535, 8_000_000, 2**20, 2**24, 2**31 - 1, 2**40, 2**63 - 1]
_FRACTIONS = [0.0, -1.0, 1e-5, 1e4, 1e30, float("nan"), float("inf")]
_NAMES = {"qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss", "minimax_m2": "minimax-m2"}
READ_OTHERWISE = ("head_count", "alignment", "architecture", "general.name")
"""Parts of names of fields by which the same bytes are other weights."""


class Reading(NamedTuple):
    """What has come of a file."""

    said: str
    """The sentence of a refusal, or empty."""
    root: str
    seconds: float
    memory: int
    """Most bytes of the process, and of those that it began."""


def read_apart(path: Path) -> Reading:
    """What `load_model` makes of a file, and the tokenizer of a text. Raises AssertionError for a process that ends
    otherwise."""
    answers, answer = os.pipe()
    began, child = time.monotonic(), os.fork()
    if not child:
        told = ["", ""]
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            loaded = load_model(path)
            told[1] = loaded.identity.model_weight_hash.hex()
            token_text(loaded.tokenizer, prompt_tokens(loaded.tokenizer, "a" * 400 + " b")[:50])
        except FolderError as error:
            told[0] = str(error)
        except BaseException as error:
            told[0] = f"NOT A SENTENCE: {type(error).__name__}\n{error}"[:500]
        memory = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        os.write(answer, json.dumps([*told, memory]).encode())
        os._exit(0)
    os.close(answer)
    with os.fdopen(answers, "rb") as stream:
        told = json.loads(stream.read() or b'["IT DIED\\n", "", 0]')
    _, _, used = os.wait4(child, 0)
    return Reading(told[0], told[1], time.monotonic() - began, 1024 * max(told[2], used.ru_maxrss))


def random_gguf(honest: Path, path: Path, seed: int) -> list[str]:
    """Writes a file with fields and tensors other than those of an honest one, whose bytes of tensors are kept; names
    of what is other."""
    from transformers.integrations import GGUF_CONFIG_MAPPING

    chance, reader, data = random.Random(seed), gguf.GGUFReader(honest), honest.read_bytes()
    fields = {name: one for name, one in reader.fields.items() if not name.startswith("GGUF.")}
    infos = data[reader.tensors[0].field.offset : reader.tensors[-1].field.offset]
    infos += data[reader.tensors[-1].field.offset :][: sum(part.nbytes for part in reader.tensors[-1].field.parts)]
    written = {name: _written(one.types, one.contents()) for name, one in fields.items()}
    changed, twice, copies, readers = [], b"", 0, installed_readers()
    architectures = sorted({*readers.read, "llama"})
    for _ in range(chance.randint(1, 3)):
        match chance.randrange(10):
            case 0:
                name, other = "general.architecture", chance.choice([*architectures, "", "llamas", "xt5", "llama"])
                written[name] = _written([9, 8] if chance.random() < 0.5 else [8], [other])
                written = {key.replace("llama", other): one for key, one in written.items()}
            case 8 | 9:
                # A known architecture with all of its fields, of their types and bounded.
                name, other = "general.architecture", chance.choice(sorted({*GGUF_CONFIG_MAPPING} & {*architectures}))
                written = {key: one for key, one in written.items() if not key.startswith("llama")}
                written[name] = _written([8], [gguf_name := _NAMES.get(other, other)])
                for key in GGUF_CONFIG_MAPPING[other]:
                    kind = 6 if key.endswith(("epsilon", "freq_base")) else 4
                    some = [1e-5, 1e4] if kind == 6 else [1, 2, 2, 2, 16, 32, 32, 64, 258, 4096, 1 << 24]
                    value = chance.choice(some)
                    written[f"{gguf_name}.{key}"] = _written([kind], [value])
            case 1:
                name = "general.name"
                written[name] = _written(chance.choice([[8], [9, 8]]), [chance.choice(["mistral", "umt5", "gpt-oss"])])
            case 2:
                name = chance.choice(sorted(written))
                written.pop(name)
            case 3:
                name = chance.choice(sorted(written))
                twice, copies = twice + _text(name) + written[name], copies + 1
            case 4 | 5:
                of = "llama" if chance.random() < 0.7 else chance.choice(architectures)
                name = f"{of}.{chance.choice(sorted(readers.fields))}"
                written[name] = _any_value(chance)
            case 6:
                name = chance.choice([name for name in sorted(written) if name.startswith(("tokenizer", "general"))])
                written[name] = _any_value(chance)
            case _:
                name, text = "tokenizer.ggml.tokens", chance.choice(["", "a", "a" * 4000, "a" * 400_000, "</s>"])
                tokens = [text, *(f"{one}" for one in range(chance.choice([0, 257, 258, 40_000])))]
                written[name] = _written([9, 8], tokens)
                if chance.random() < 0.5:
                    written["tokenizer.ggml.model"] = _written([8], ["llama"])
                    written["tokenizer.ggml.scores"] = _written([9, 6], [0.0] * len(tokens))
                    written.pop("tokenizer.ggml.merges", None)
        changed.append(name)
    if chance.random() < 0.1:
        # A number of a tensor's name, shape, type or offset.
        place = 8 * chance.randrange(len(infos) // 8)
        infos = infos[:place] + struct.pack("<Q", chance.choice(_NUMBERS) % (1 << 64)) + infos[place + 8 :]
        changed.append("alignment of tensors")
    values = b"".join(_text(name) + value for name, value in written.items()) + twice
    count = len(written) + copies
    head = b"GGUF" + struct.pack("<IQQ", 3, len(reader.tensors), count) + values + infos
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data[reader.data_offset :])
    return changed


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _written(types: Sequence[int], value: Any) -> bytes:
    """A field's type and value. types: of gguf's; behind that of a list stands that of its entries."""
    inner = types[-1]
    values = list(value) if isinstance(value, list) else [value]
    body = b"".join(_text(one) if inner == 8 else struct.pack("<" + _KINDS[inner], one) for one in values)
    head = struct.pack("<IIQ", 9, inner, len(values)) if types[0] == 9 else struct.pack("<I", inner)
    return head + body


def _any_value(chance: random.Random) -> bytes:
    inner = chance.choice([*_KINDS, 8])
    values: list[Any] = _FRACTIONS if inner in (6, 12) else ["", "3", "llama", "x" * 70] if inner == 8 else [0, 1]
    if inner not in (6, 7, 8, 12):
        bits = 8 * struct.calcsize(_KINDS[inner])
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if _KINDS[inner].islower() else (0, (1 << bits) - 1)
        values = [min(max(one, low), high) for one in _NUMBERS]
    is_list = chance.random() < 0.4
    count = chance.choice([0, 1, 1, 2, 3, 1000, 100_000]) if is_list else 1
    return _written([9, inner] if is_list else [inner], [chance.choice(values) for _ in range(count)])


FILES = int(os.environ.get("RANDOM_MODELS", "24"))
"""Files; 2,000 take a quarter of an hour."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_random_model_is_a_sentence_or_the_honest_one(tmp_path: Path) -> None:
    honest = tmp_path / "honest.gguf"
    write_gguf(honest)
    right = load_model(honest).identity.model_weight_hash.hex()
    counts, seconds, memory = Counter[str](), list[float](), list[int]()
    for seed in range(FILES):
        path = tmp_path / f"{seed}"
        changed = random_gguf(honest, path, seed)
        found = read_apart(path)
        assert "\n" not in found.said and len(found.said) < 700, (seed, changed, found)
        assert found.said or found.root, (seed, changed, found)
        if found.root and not any(part in name for part in READ_OTHERWISE for name in changed):
            assert found.root == right, (seed, changed)
        assert found.memory < 1 << 30 and found.seconds < 120, (seed, changed, found)
        counts["loaded" if found.root else found.said.replace(str(path), "")[:60]] += 1
        seconds.append(found.seconds)
        memory.append(found.memory)
        path.unlink()
    print(f"{sum(seconds):.0f} s, longest {max(seconds):.1f} s, memory {max(memory) >> 20} MB, {counts}")
    assert 0 < counts["loaded"] < len(seconds)
