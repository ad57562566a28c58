"""A folder with a causal language model of Hugging Face, read without a network: weights as safetensors or GGUF, the
configuration, the tokenizer with its chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from roundlog.capture import portable
from roundlog.commitments import MerkleTree, tensor_root
from roundlog.generation.folder_bounds import BoundError, require_bounded_files, require_weights
from roundlog.generation.generation_receipt import DTYPES, ModelIdentity
from roundlog.generation.prompt_process import PromptError, encoded_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
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
        require_bounded_files(folder)
        if source == configuration:
            require_weights(folder, AutoConfig.from_pretrained(folder, **options))
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
        wanted: torch.dtype | str = "auto" if dtype is None else DTYPES[dtype]
        if dtype is None and "gguf_file" in options:
            wanted = torch.bfloat16
        model = _weights(AutoModelForCausalLM, folder, wanted, options)
        if model.dtype == torch.float16:
            model = _weights(AutoModelForCausalLM, folder, torch.bfloat16, options)
        stop = _stop_tokens(model, tokenizer)
    except FolderError:
        raise
    except BoundError as error:
        raise FolderError(f"the model in {folder} is none that could be read, since {error}: give another") from error
    except Exception as error:
        # transformers raises errors of every type for what it cannot read.
        reason = " ".join(str(error).split())[:300]
        raise FolderError(
            f"the model in {folder} cannot be read ({type(error).__name__}: {reason}): give a folder with config, "
            "tokenizer and weights as safetensors or GGUF"
        ) from error
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        identity=ModelIdentity(
            name=name or folder.resolve().name,
            revision=revision,
            model_weight_hash=weight_root(model),
            config_hash=_digest(folder, _CONFIGURATION if source == configuration else (source.name,)),
            tokenizer_hash=_digest(folder, _TOKENIZER, otherwise=source.name),
        ),
        stop=stop,
    )


_CONFIGURATION = ("config.json", "generation_config.json")
_TOKENIZER = (
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


def _weights(loader: Any, folder: Path, dtype: torch.dtype | str, options: dict[str, Any]) -> Any:
    """The model, each of whose weights is the folder's. Raises FolderError, and what transformers raises."""
    # safetensors hold numbers alone; other formats of weights may hold code.
    safe = {} if "gguf_file" in options else {"use_safetensors": True}
    # Tables that a model computes for itself are the same on every machine so. A model that is converted afterwards
    # has them rounded, which transformers' own have not.
    with portable():
        # Weights of other shapes are in the report, by name: transformers' own refusal names none.
        model, report = loader.from_pretrained(
            folder,
            attn_implementation="sdpa",
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **options,
            **safe,
        )
    lacking = [*report.get("missing_keys", ()), *(name for name, *_ in report.get("mismatched_keys", ()))]
    if lacking:
        raise FolderError(
            f"the weights in {folder} lack {min(lacking)}, or have it in another shape than the config says: fetch the "
            "model again"
        )
    return model.eval()


def weight_root(model: torch.nn.Module) -> bytes:
    """Merkle root over a model's weights, in the order of their names in its state dict: parameters, under each of
    their names, and buffers that are saved with them. A leaf is SHA-256 of the name, a zero byte and the tensor
    root."""
    states = sorted(model.state_dict().items())
    return MerkleTree([sha256(name.encode() + b"\0" + tensor_root(_stored(x))).digest() for name, x in states]).root


def _stored(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in a format that has a root, to the same numbers."""
    kept = tensor.dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool)
    return tensor.detach() if kept else tensor.detach().to(torch.float32 if tensor.is_floating_point() else torch.int64)


def prompt_tokens(tokenizer: Any, prompt: str | Sequence[dict[str, str]]) -> list[int]:
    """Tokens of a prompt: a text as it is, or messages ({"role": ..., "content": ...}) by the tokenizer's chat
    template. Raises FolderError for messages where it has none, or that the template does not take."""
    is_text = isinstance(prompt, str)
    if not is_text and not tokenizer.chat_template:
        raise FolderError("the tokenizer has no chat template: give a text as it is")
    try:
        return encoded_prompt(tokenizer, prompt)
    except PromptError as error:
        if is_text:
            raise FolderError(f"the tokenizer does not take this text ({error}): choose another model") from error
        raise FolderError(f"the chat template does not take these messages ({error}): give a text as it is") from error


def _stop_tokens(model: PreTrainedModel, tokenizer: Any) -> tuple[int, ...]:
    given = model.generation_config.eos_token_id if model.generation_config is not None else None
    several: list[Any] = list(given) if isinstance(given, list) else [given]
    found = [token for token in (*several, tokenizer.eos_token_id) if token is not None]
    size = model.config.get_text_config().vocab_size
    if wrong := [token for token in found if type(token) is not int or not 0 <= token < size]:
        raise FolderError(f"the eos_token_id {str(wrong[0])[:60]} is none of the model's {size} tokens: correct it")
    return tuple(sorted(set(found)))


def _digest(folder: Path, names: Sequence[str], *, otherwise: str = "") -> bytes:
    """SHA-256 of what `sha256sum` prints of those files that are there: a line with the digest, two blanks and the
    name, for each. otherwise: a file that stands for them."""
    there = [name for name in names if (folder / name).is_file()] or [otherwise]
    lines = (f"{_file_digest(folder / name)}  {name}\n" for name in there)
    return sha256("".join(lines).encode()).digest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
