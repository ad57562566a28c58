"""A causal language model of Hugging Face, read without a network: a folder with weights as safetensors, the
configuration, the tokenizer with its chat template; or a GGUF file, which holds all of these."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from roundlog.capture import portable
from roundlog.commitments import MerkleTree, tensor_root
from roundlog.generation.folder_bounds import BoundError, require_weights, tried
from roundlog.generation.folder_files import CONFIGURATION, TOKENIZER, covered_files, file_sha256, files_digest
from roundlog.generation.generation_receipt import DTYPES, ModelIdentity
from roundlog.generation.gguf_file import weights_held, without_vocabulary
from roundlog.generation.prompt_process import (
    MAX_MEMORY,
    START_SECONDS,
    WEIGHTS_FACTOR,
    WEIGHTS_SPEED,
    PromptError,
    decoded_text,
    encoded_prompt,
    limits,
)

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


def load_model(path: Path, *, dtype: str | None = None, name: str = "", revision: str = "") -> LoadedModel:
    """The model of a folder, or of a GGUF file; no code of a folder's is run. A folder without a config.json is that of
    the one GGUF file in it, and nothing beside that file is read. dtype: of DTYPES; None keeps that of the weights, and
    takes BF16 for GGUF and for FP16. name, revision: as the receipt has them; an empty name is the path's.

    Raises FolderError, OSError."""
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise FolderError(
            "text needs transformers, which is not installed: pip install 'tiebreak[transformers]'"
        ) from error
    gguf = _gguf_of(path)
    with _readable(path if gguf is None else gguf, is_gguf=gguf is not None) as (folder, options):
        try:
            size = tried(partial(_examined, folder, options, None if dtype is None else DTYPES[dtype]))
            tokenizer = AutoTokenizer.from_pretrained(folder, **options)
            with limits(START_SECONDS + size / WEIGHTS_SPEED, MAX_MEMORY + WEIGHTS_FACTOR * size):
                if gguf is not None:
                    model = _weights(AutoModelForCausalLM, folder, torch.float32, options)
                    _unpack(model, torch.bfloat16 if dtype is None else DTYPES[dtype])
                else:
                    model = _weights(AutoModelForCausalLM, folder, "auto" if dtype is None else DTYPES[dtype], options)
                    if model.dtype == torch.float16:
                        del model
                        model = _weights(AutoModelForCausalLM, folder, torch.bfloat16, options)
            stop = _stop_tokens(model, tokenizer)
        except FolderError as error:
            raise FolderError(f"the model in {path} cannot be read ({error}): fetch it again, or correct it") from error
        except (MemoryError, TimeoutError, BoundError) as error:
            is_bound = isinstance(error, BoundError)
            why = error if is_bound else f"its weights take more time or memory than {size} bytes of weights need"
            raise FolderError(
                f"the model in {path} is none that could be read, since {why}: fetch it again, or give another"
            ) from error
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # transformers raises errors of every type for what it cannot read, and tokenizers panics, which are no
            # Exception.
            reason = " ".join(str(error).replace(str(folder), str(path)).split())[:300]
            raise FolderError(
                f"the model in {path} cannot be read ({type(error).__name__}: {reason}): fetch it again, or give a "
                "folder with config, tokenizer and weights as safetensors, or a GGUF file"
            ) from error
    whole = None if gguf is None else file_sha256(gguf)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        identity=ModelIdentity(
            name=name or path.resolve().name,
            revision=revision,
            model_weight_hash=weight_root(model),
            config_hash=whole or files_digest(path, CONFIGURATION),
            tokenizer_hash=whole or files_digest(path, TOKENIZER),
        ),
        stop=stop,
    )


def save_model(loaded: LoadedModel, folder: Path) -> ModelIdentity:
    """Writes a model into a folder that is there: weights as safetensors, configuration, tokenizer. The identity of
    what is read there again: the same weights, bit for bit; configuration and tokenizer are other files. Raises
    FolderError, OSError."""
    loaded.tokenizer.name_or_path = ""  # of the place that it was read from, which others do not have
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    again = load_model(folder, name=loaded.identity.name, revision=loaded.identity.revision)
    if again.identity.model_weight_hash != loaded.identity.model_weight_hash or again.stop != loaded.stop:
        raise FolderError(f"the model in {folder} is another one when it is read again: keep it as it was")
    return again.identity


def _gguf_of(path: Path) -> Path | None:
    """The GGUF file that a path stands for; None for a folder with a config.json. Raises FolderError."""
    if not path.exists():
        raise FolderError(f"there is no folder {path} with a model: fetch one, as with `huggingface-cli download`")
    if not path.is_dir():
        return path
    if (path / "config.json").is_file():
        return None
    found = sorted(path.glob("*.gguf"))
    if len(found) != 1:
        raise FolderError(f"{path} has neither a config.json nor one file *.gguf: give the folder of a model")
    return found[0]


@contextmanager
def _readable(path: Path, *, is_gguf: bool) -> Iterator[tuple[Path, dict[str, Any]]]:
    """(folder, options) by which transformers reads a model. Raises FolderError."""
    # Without the second, transformers asks on the terminal whether to run code of the folder's.
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if not is_gguf:
        with ExitStack() as stack:
            try:
                covered = stack.enter_context(covered_files(path))
            except ValueError as error:
                raise FolderError(f"{path} {error}") from error
            yield covered, options
        return
    if find_spec("gguf") is None:
        raise FolderError(f"{path} needs the package gguf, which is not installed: pip install 'tiebreak[gguf]'")
    # In a folder of its own: what stands beside the file is not in any hash.
    with tempfile.TemporaryDirectory(prefix="tiebreak-gguf-") as name:
        (Path(name) / "model.gguf").symlink_to(path.resolve())
        with without_vocabulary():
            yield Path(name), options | {"gguf_file": "model.gguf"}


def _examined(folder: Path, options: dict[str, Any], dtype: torch.dtype | None) -> int:
    """Bytes of a model's weights, in the file or in memory, once its small parts were read. Raises BoundError, and what
    transformers raises."""
    from transformers import AutoConfig, AutoTokenizer

    if (file := options.get("gguf_file")) is not None:
        (held, tensors), dtype = weights_held(folder / file), torch.float32
        stored = (folder / file).stat().st_size
    else:
        stored = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        held, tensors = 2 * stored, 1 << 20  # A number is stored in four bits at least.
    config = AutoConfig.from_pretrained(folder, **options)
    if dtype is not None:
        config.dtype = dtype
    asked = require_weights(config, held, tensors) if stored else 0  # transformers says so
    AutoTokenizer.from_pretrained(folder, **options)
    size: int = max(stored, asked)
    return size


def _weights(loader: Any, folder: Path, dtype: torch.dtype | str, options: dict[str, Any]) -> Any:
    """The model, each of whose weights is the folder's. Raises FolderError, and what transformers raises."""
    from transformers import GgufConfig

    # safetensors hold numbers alone; other formats of weights may hold code. Of GGUF's, transformers would leave packed
    # what it has kernels for.
    is_gguf = "gguf_file" in options
    safe = {"quantization_config": GgufConfig(dequantize=True)} if is_gguf else {"use_safetensors": True}
    how = {"dtype": dtype, "output_loading_info": True, "ignore_mismatched_sizes": True, **options, **safe}
    # Tables that a model computes for itself are the same on every machine so. A model that is converted afterwards
    # has them rounded, which transformers' own have not.
    with portable():
        # Weights of other shapes are in the report, by name: transformers' own refusal names none.
        try:
            model, report = loader.from_pretrained(folder, attn_implementation="sdpa", **how)
        except ValueError as error:
            if "scaled_dot_product_attention" not in str(error):
                raise
            # A model whose code writes its attention out, and has no other, as Gemma 2's.
            model, report = loader.from_pretrained(folder, attn_implementation="eager", **how)
    lacking = [*report.get("missing_keys", ()), *(name for name, *_ in report.get("mismatched_keys", ()))]
    if lacking:
        raise FolderError(f"its weights lack {min(lacking)}, or have it in another shape than the config says")
    return model.eval()


def _unpack(model: Any, dtype: torch.dtype) -> None:
    """Makes a plain model of one that was read from GGUF in FP32: each weight is rounded once, while transformers'
    readers round several times on their way to BF16, and others elsewhere."""
    for tensor in model.state_dict(keep_vars=True).values():
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
    model.config.dtype = dtype
    model.hf_quantizer, model.is_quantized = None, False
    for name in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(model.config, name):
            delattr(model.config, name)


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


def token_text(tokenizer: Any, tokens: Sequence[int], *, skip_special: bool = False) -> str:
    """The text of tokens, as the tokenizer has it. Raises FolderError."""
    try:
        return decoded_text(tokenizer, tokens, skip_special=skip_special)
    except PromptError as error:
        raise FolderError(f"the tokenizer makes no text of its tokens ({error}): choose another model") from error


def _stop_tokens(model: PreTrainedModel, tokenizer: Any) -> tuple[int, ...]:
    given = model.generation_config.eos_token_id if model.generation_config is not None else None
    several: list[Any] = list(given) if isinstance(given, list) else [given]
    found = [token for token in (*several, tokenizer.eos_token_id) if token is not None]
    size = model.config.get_text_config().vocab_size
    if wrong := [token for token in found if type(token) is not int or not 0 <= token < size]:
        raise FolderError(f"the eos_token_id {str(wrong[0])[:60]} is none of the model's {size} tokens")
    return tuple(sorted(set(found)))
