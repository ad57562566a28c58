"""A folder with a causal language model of Hugging Face, read without a network: weights as safetensors or GGUF, the
configuration, the tokenizer with its chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from roundlog.commitments import MerkleTree, tensor_root
from roundlog.generation.generation_receipt import ModelIdentity

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Formats of weights that generate text, by the names that options have."""


class FolderError(ValueError):
    """A folder without a model that could be read. The message is one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its tokenizer, and what a receipt says of them."""

    model: PreTrainedModel
    tokenizer: Any
    """A `transformers.PreTrainedTokenizerBase`."""
    identity: ModelIdentity
    stop: tuple[int, ...]
    """Tokens that end a text."""


def load_model(folder: Path, *, dtype: str | None = None, name: str = "", revision: str = "") -> LoadedModel:
    """The model of a folder; no code of the folder's is run. dtype: of DTYPES; None keeps that of the weights, and
    takes BF16 for GGUF and for FP16. name, revision: as the receipt has them; an empty name is the folder's.

    Raises FolderError."""
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise FolderError(
            "text needs transformers, which is not installed: pip install 'tiebreak[transformers]'"
        ) from error
    if not folder.is_dir():
        raise FolderError(f"there is no folder {folder} with a model: fetch one, as with `huggingface-cli download`")
    gguf = sorted(folder.glob("*.gguf"))
    configuration = folder / "config.json"
    if not configuration.is_file() and len(gguf) != 1:
        raise FolderError(f"{folder} has neither a config.json nor one file *.gguf: give the folder of a model")
    source = configuration if configuration.is_file() else gguf[0]
    # Without the second, transformers asks on the terminal whether to run code of the folder's.
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if source != configuration:
        options["gguf_file"] = source.name
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
        # safetensors hold numbers alone; other formats of weights may hold code.
        safe = {} if "gguf_file" in options else {"use_safetensors": True}
        model = AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="sdpa", dtype="auto", **options, **safe
        )
    except Exception as error:
        # transformers raises errors of every type for what it cannot read.
        reason = " ".join(str(error).split())[:300]
        raise FolderError(
            f"the model in {folder} cannot be read ({type(error).__name__}: {reason}): give a folder with config, "
            "tokenizer and weights as safetensors or GGUF"
        ) from error
    wanted = model.dtype if dtype is None else DTYPES[dtype]
    if dtype is None and ("gguf_file" in options or wanted == torch.float16):
        wanted = torch.bfloat16
    model = model.to(wanted).eval()
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        identity=ModelIdentity(
            name=name or folder.resolve().name,
            revision=revision,
            model_weight_hash=weight_root(model),
            config_hash=_digest(source),
            tokenizer_hash=_digest(folder / "tokenizer.json", source),
        ),
        stop=_stop_tokens(model, tokenizer),
    )


def weight_root(model: torch.nn.Module) -> bytes:
    """Merkle root over the roots of a model's parameters, in the order of their names; one that has several names
    counts once, by the first."""
    return MerkleTree([tensor_root(tensor.detach()) for _, tensor in sorted(model.named_parameters())]).root


def prompt_tokens(tokenizer: Any, prompt: str | Sequence[dict[str, str]]) -> list[int]:
    """Tokens of a prompt: a text as it is, or messages ({"role": ..., "content": ...}) by the tokenizer's chat
    template. Raises FolderError for messages where it has none, or that the template does not take."""
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    if not tokenizer.chat_template:
        raise FolderError("the tokenizer has no chat template: give a text as it is")
    try:
        found = tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True, return_dict=True)
    except Exception as error:
        # A template is a program of its own (Jinja), with errors of its own.
        raise FolderError(f"the chat template does not take these messages ({error}): give a text as it is") from error
    return list(found["input_ids"])


def _stop_tokens(model: PreTrainedModel, tokenizer: Any) -> tuple[int, ...]:
    given = model.generation_config.eos_token_id if model.generation_config is not None else None
    found = [given] if isinstance(given, int) else list(given or [])
    if tokenizer.eos_token_id is not None:
        found.append(tokenizer.eos_token_id)
    return tuple(sorted(set(found)))


def _digest(*paths: Path) -> bytes:
    """SHA-256 of the first file that there is."""
    path = next((one for one in paths if one.is_file()), None)
    if path is None:
        raise FolderError(f"there is no {paths[0]}: fetch the model's tokenizer as well")
    found = sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.digest()
