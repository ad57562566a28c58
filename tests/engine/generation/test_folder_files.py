"""Folders of models: what is read of them is in a hash, and what would read other files is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from roundlog.generation import FolderError, load_model
from roundlog.generation.folder_files import CONFIGURATION, TOKENIZER

from tests.client.server.small_model import save_small_model

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("folders") / "small")


@pytest.fixture
def folder(small: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small, tmp_path / "small"))


def with_fields(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_config_that_names_another_one_is_refused(folder: Path) -> None:
    shutil.copy(folder / "config.json", folder / "config.4.0.0.json")
    with_fields(folder / "config.4.0.0.json", rms_norm_eps=50.0)
    with_fields(folder / "config.json", configuration_files=["config.4.0.0.json"])
    with pytest.raises(FolderError, match=r"config\.json with configuration_files.* keep one, without it"):
        load_model(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fast_tokenizer_files", ["tokenizer.4.0.0.json"]),
        ("tokenizer_file", "tokenizer.4.0.0.json"),
        ("vocab_file", "vocab.4.0.0.json"),
        ("vocab", "vocab.4.0.0.json"),
        ("gguf_file", "x.gguf"),
        ("tokenizer_file", None),
        ("special_tokens_map_file", "/somewhere/special_tokens_map.json"),
    ],
)
def test_a_tokenizer_that_names_another_one_is_refused(folder: Path, key: str, value: object) -> None:
    with_fields(folder / "tokenizer_config.json", **{key: value})
    if value is None or key == "special_tokens_map_file":  # names nothing that is read
        assert load_model(folder).stop == (1,)
        return
    with pytest.raises(FolderError, match=rf"tokenizer_config\.json with {key}"):
        load_model(folder)


def test_an_adapter_is_to_be_merged_first(folder: Path) -> None:
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "x"}))
    with pytest.raises(FolderError, match="merge the adapter first"):
        load_model(folder)


def test_a_folder_without_a_tokenizer_says_so(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(FolderError, match=r"small has no tokenizer \(spiece\.model, tokenizer\.json, .* put the files"):
        load_model(folder)


OTHERS = (
    "additional_chat_templates/default.jinja",
    "additional_chat_templates/tool_use.jinja",
    "chat_template.json",
    "config.4.0.0.json",
    "custom_generate/generate.py",
    "modeling_small.py",
    "processor_config.json",
    "tokenizer.4.0.0.json",
    "tokenizer.model.v3",
    "vocab.bpe",
)
"""Files that transformers reads of some folders, or once did, and that no hash covers."""

_OPENED = """
import json, os, sys
from pathlib import Path
folder, opened = Path(sys.argv[1]), set()
def hook(event, arguments):
    # Links that are opened are gone once the model is read.
    if event == "open" and isinstance(arguments[0], str | bytes):
        opened.add(os.path.realpath(os.fsdecode(arguments[0])))
sys.addaudithook(hook)
from roundlog.generation import load_model
loaded = load_model(folder, name="m")
within = sorted(str(Path(path).relative_to(folder)) for path in opened if Path(path).is_relative_to(folder))
identity = [loaded.identity.config_hash.hex(), loaded.identity.tokenizer_hash.hex()]
print(json.dumps({"opened": within, "template": loaded.tokenizer.chat_template, "identity": identity}))
"""


def opened(folder: Path) -> dict[str, object]:
    """Files of a folder that are opened while it is read, by their names, with its chat template and hashes."""
    done = subprocess.run(
        [sys.executable, "-c", _OPENED, str(folder.resolve())], capture_output=True, text=True, check=True
    )
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_every_file_that_is_read_is_in_a_hash(folder: Path) -> None:
    alone = opened(folder)
    for name in OTHERS:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}" if path.suffix == ".json" else "another one")
    beside = opened(folder)
    assert beside == alone
    names = beside["opened"]
    assert isinstance(names, list) and {"config.json", "generation_config.json", "tokenizer_config.json"} <= {*names}
    assert not [name for name in names if name not in (*CONFIGURATION, *TOKENIZER, "model.safetensors")], names
