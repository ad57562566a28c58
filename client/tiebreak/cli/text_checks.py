"""The check of a text's receipt, by its model: what `tiebreak verify` does with one, and its answer."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebreak.cli import output
from tiebreak.cli.failures import CommandError
from tiebreak.cli.receipt_files import signer_text

if TYPE_CHECKING:
    from roundlog.generation import GenerationReceipt, LoadedModel, TextCheck


def check_text_receipt(
    file: Path, receipt: GenerationReceipt, model: Path, fault: str | None, *, by_token: bool, json: bool
) -> bool:
    """Whether a receipt is right, which is printed. fault: of its signature, in one clause; nothing is repeated then.

    Raises CommandError for the receipt of another model, FolderError, CaptureError, ProgramError."""
    started = time.monotonic()
    answer = _Answer(receipt, fault) if fault is not None else _repeat(file, receipt, model, by_token)
    if json:
        output.show_json(answer.plain() | {"receipt": file, "seconds": round(time.monotonic() - started, 3)})
    else:
        answer.show(file)
    return answer.is_right


def read_model(folder: Path, dtype: str | None) -> LoadedModel:
    """The model of a folder or a GGUF file, named as receipts can have it. Raises FolderError, CommandError."""
    from roundlog.generation import FolderError, load_model

    try:
        from transformers import modeling_gguf_pytorch_utils as gguf_reader
        from transformers.utils import logging
    except ImportError:
        pass  # `load_model` says so
    else:
        gguf_reader.tqdm = logging.tqdm  # which the next line switches off, and the reader's own it does not
        logging.disable_progress_bar()
        logging.set_verbosity_error()
    name = re.sub("[^ -~]", "?", folder.resolve().name)[:200]
    try:
        return load_model(folder, dtype=dtype, name=name)
    except FolderError:
        raise
    except OSError as error:
        raise CommandError(f"the model in {folder} cannot be read ({error.strerror}): check its files.") from error


def decoded(tokenizer: Any, tokens: list[int]) -> str:
    """The text of tokens, as people read it: without special ones, and a prefix of that of more tokens."""
    return str(tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that move or turn what a terminal shows, but for ends of lines and tabs."""


def without_controls(text: str) -> str:
    """A text of a model, which is not to control a terminal."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def about_text(receipt: GenerationReceipt) -> dict[str, object]:
    """Facts of a receipt, for people."""
    name = receipt.model.name + (f", revision {receipt.model.revision}" if receipt.model.revision else "")
    return {
        "receipt of": f"a text of {len(receipt.tokens)} tokens behind {len(receipt.prompt)}",
        "model": f"{name}, in {receipt.dtype}, products {receipt.arithmetic}",
        "model weight hash": receipt.model.model_weight_hash,
        "end": receipt.finish_reason,
    }


def _repeat(file: Path, receipt: GenerationReceipt, model: Path, by_token: bool) -> _Answer:
    from roundlog.execution import StoppedError
    from roundlog.generation import Choice, Generator, check_text, other_model

    total = len(receipt.tokens)
    with output.progress("Verifying", total) as bar:
        bar.done(0, "reads the model")
        loaded = read_model(model, receipt.dtype)
        if (other := other_model(receipt, loaded)) is not None:
            raise CommandError(
                f"{file} is of another model than that in {model}, whose {other} is not the receipt's: give the model "
                f"that it is of, {receipt.model.name or 'which has no name'} {receipt.model.revision}".rstrip()
                + "."
            )
        bar.done(0, "captures it")
        generator = Generator(loaded.model, positions=len(receipt.prompt) + total, arithmetic=receipt.arithmetic)
        right = list[Choice]()

        def tell(choice: Choice) -> None:
            right.append(choice)
            bar.done(len(right))

        try:
            found = check_text(receipt, generator, stop=loaded.stop, by_token=by_token, tell=tell)
        except StoppedError as error:
            return _Answer(receipt, None, loaded, None, len(right), f"the repetition stops ({error})")
    return _Answer(receipt, None, loaded, found, len(right))


@dataclass(frozen=True, slots=True)
class _Answer:
    """Answer of `verify` on a text."""

    receipt: GenerationReceipt
    wrong_signature: str | None
    loaded: LoadedModel | None = None
    found: TextCheck | None = None
    right_tokens: int = 0
    """Tokens that are the model's, before the first that is not."""
    stopped: str | None = None

    @property
    def is_right(self) -> bool:
        return self.found is not None and self.found.is_right

    @property
    def other_code(self) -> tuple[str, str] | None:
        """Versions of transformers, the receipt's and this one, if they differ; None if nothing was repeated."""
        if self.loaded is None:
            return None
        import transformers

        theirs, ours = self.receipt.versions["transformers"], transformers.__version__.partition("+")[0]
        return (theirs, ours) if theirs != ours else None

    def plain(self) -> dict[str, object]:
        """The answer for programs."""
        found, other = self.found, self.other_code
        wrong = found.wrong_token if found is not None else None
        return {
            "right": self.is_right,
            "digest": self.receipt.digest,
            "signer": self.receipt.signer,
            "wrong_signature": self.wrong_signature,
            "tokens": len(self.receipt.tokens),
            "right_tokens": self.right_tokens,
            "wrong_token": wrong,
            "token": self.receipt.tokens[wrong] if wrong is not None else None,
            "chosen_token": found.right.token if found is not None and found.right is not None else None,
            "wrong_logprobs": found.wrong_logprobs if found is not None else False,
            "wrong_stop": found.wrong_stop if found is not None else False,
            "stopped": self.stopped,
            "other_transformers": list(other) if other is not None else None,
        }

    def show(self, file: Path) -> None:
        """Prints the answer for people."""
        if self.loaded is None:
            output.show_line(f"WRONG: {file}: {self.wrong_signature}; nothing was repeated.")
            return
        total = len(self.receipt.tokens)
        if self.is_right:
            output.show_line(
                f"Right: the model chooses all {total} tokens of {file}, with their log-probabilities; "
                f"{signer_text(self.receipt)}."
            )
            return
        output.show_line(f"WRONG: {self._wrong(file)}.")
        if self.other_code is not None:
            theirs, ours = self.other_code
            output.show_line(
                f"The receipt was written with transformers {theirs}, and this is {ours}: the model's code is that of "
                "transformers, so verify it with that version before you judge."
            )

    def _wrong(self, file: Path) -> str:
        found, total = self.found, len(self.receipt.tokens)
        if found is None:
            return f"behind {self.right_tokens} of {total} right tokens {self.stopped}"
        if found.wrong_stop:
            assert self.loaded is not None
            return (
                f"the text of {file} ends at any of the tokens {list(self.receipt.stop)}, and texts of the model at "
                f"any of {list(self.loaded.stop)}; nothing was repeated"
            )
        if found.wrong_token is None or found.right is None:
            return f"all {total} tokens of {file} are the model's, and their log-probabilities are not"
        said = self.receipt.tokens[found.wrong_token]
        return (
            f"token {found.wrong_token + 1} of {total} in {file} is {self._named(said)}, and the model chooses "
            f"{self._named(found.right.token)}"
        )

    def _named(self, token: int) -> str:
        """A token's number and text."""
        assert self.loaded is not None
        text = self.loaded.tokenizer.decode([token], clean_up_tokenization_spaces=False)
        return f"{token} {str(text)[:60]!r}"
