"""Files of a model's folder, each of which a hash of its identity covers: transformers reads these and no others."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import file_digest, sha256
from pathlib import Path

CONFIGURATION = ("config.json", "generation_config.json")
"""Files of `ModelIdentity.config_hash`."""

TOKENIZER = (
    "added_tokens.json",
    "chat_template.jinja",
    "merges.txt",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
"""Files of `ModelIdentity.tokenizer_hash`."""

_VOCABULARIES = ("spiece.model", "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
"""Files of a vocabulary: without any of them, there is no tokenizer."""

_PATHS = frozenset(["gguf_file", "merges", "tokenizer_object", "vocab"])
_UNUSED = frozenset(["special_tokens_map_file", "tokenizer_config_file"])
"""Paths in configurations of tokenizers, of where they were made: nobody reads them."""

_ADAPTER = "adapter_config.json"
_INDEX = "model.safetensors.index.json"


@contextmanager
def covered_files(folder: Path) -> Iterator[Path]:
    """A folder with the files of a model's folder that a hash covers; weights, and the list of their files, are covered
    by the hash of the weights. It is there within the block.

    Raises ValueError, whose words go on a sentence that names the folder: it has something that reads other files, or
    no tokenizer."""
    if (folder / _ADAPTER).exists():
        raise ValueError(f"has an {_ADAPTER}, whose adapter changes the model: merge the adapter first")
    for name, keys in (
        ("config.json", [key for key in _fields(folder / "config.json") if key == "configuration_files"]),
        ("tokenizer_config.json", _paths(_fields(folder / "tokenizer_config.json"))),
    ):
        if keys:
            raise ValueError(
                f"has a {name} with {keys[0]}, which names another file in its place: keep one, without it"
            )
    if not any((folder / name).is_file() for name in _VOCABULARIES):
        raise ValueError(f"has no tokenizer ({', '.join(_VOCABULARIES)}): put the files of the model's own there")
    there = [folder / name for name in (*CONFIGURATION, *TOKENIZER, _INDEX)]
    # transformers finds templates and versions of files by their names, too: it finds none here.
    with tempfile.TemporaryDirectory(prefix="tiebreak-model-") as name:
        for file in (*there, *folder.glob("*.safetensors")):
            if file.is_file():
                (Path(name) / file.name).symlink_to(file.resolve())
        yield Path(name)


def _fields(path: Path) -> dict[str, object]:
    """The object in a file; empty where it has none, which the reader itself tells."""
    try:
        plain = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return plain if isinstance(plain, dict) else {}


def _paths(fields: dict[str, object]) -> list[str]:
    """Keys by which a tokenizer's configuration names files, which some versions of transformers read in place of the
    folder's."""
    named = [key for key in fields if key in _PATHS or (key.endswith(("_file", "_files")) and key not in _UNUSED)]
    return [key for key in named if fields[key]]


def files_digest(folder: Path, names: Sequence[str]) -> bytes:
    """SHA-256 of what `sha256sum` prints of those files that are there: a line with the digest, two blanks and the
    name, for each."""
    there = [name for name in names if (folder / name).is_file()]
    lines = (f"{file_sha256(folder / name).hex()}  {name}\n" for name in there)
    return sha256("".join(lines).encode()).digest()


def file_sha256(path: Path) -> bytes:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").digest()
