"""The check of a text's receipt, by its model: what `tiebreak verify` does with one, and its answer."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tiebreak.cli import output
from tiebreak.cli.failures import CommandError
from tiebreak.cli.receipt_files import signer_text
from tiebreak.generated_text import text_behind, without_controls

if TYPE_CHECKING:
    from roundlog.generation import Choice, GenerationReceipt, LoadedModel, TextCheck

    from tiebreak.cli.exchange_files import ExchangeFiles


def check_text_receipt(
    file: Path,
    receipt: GenerationReceipt,
    model: Path,
    fault: str | None,
    wrong_training: str | None,
    *,
    by_token: bool,
    show_prompt: bool,
    show_text: bool,
    exchange: ExchangeFiles,
    names_training: bool,
    json: bool,
) -> bool:
    """Whether a receipt is right, which is printed, with its prompt and its text where they are asked for. fault: of
    its signature, in one clause; wrong_training: of the receipt of a run that it names. Nothing is repeated then.
    exchange: bodies to compare with it. names_training: whether it was held against the receipt of a run.

    Raises CommandError for the receipt of another model, FolderError, CaptureError, ProgramError."""
    started = time.monotonic()
    if fault is not None or wrong_training is not None:
        answer = _Answer(receipt, fault, wrong_training=wrong_training)
    else:
        answer = _repeat(file, receipt, model, by_token)
    if answer.loaded is not None:
        exchange.compare(file, receipt, answer.loaded, answer.choices if answer.is_right else None)
    is_right = answer.is_right and not exchange.wrong
    if json:
        words: dict[str, object] = {"prompt": answer.prompt} if show_prompt else {}
        words |= {"text": answer.text} if show_text else {}
        words |= exchange.plain() | {"right": is_right}
        checked = {*(f"{name}_sha256" for name in exchange.compared), *(["training_receipt"] if names_training else [])}
        words["unchecked"] = [name for name in answer.words_of_author if name not in checked]
        output.show_json(answer.plain() | words | {"receipt": file, "seconds": round(time.monotonic() - started, 3)})
        return is_right
    answer.show(file)
    if answer.loaded is not None:
        exchange.show(file, receipt)
    if show_prompt:
        answer.show_prompt(file)
    if show_text:
        answer.show_text(file)
    return is_right


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


def about_text(receipt: GenerationReceipt) -> dict[str, object]:
    """Facts of a receipt, for people."""
    name = receipt.model.name + (f", revision {receipt.model.revision}" if receipt.model.revision else "")
    return {
        "receipt of": f"a text of {len(receipt.tokens)} tokens behind {len(receipt.prompt)}",
        "model": f"{name} (its author's word), in {receipt.dtype}, products {receipt.arithmetic}",
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
    return _Answer(receipt, None, loaded, found, len(right), choices=tuple(right))


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
    wrong_training: str | None = None
    choices: tuple[Choice, ...] = ()
    """These tokens, with the model's log-probabilities."""

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

    @property
    def words_of_author(self) -> list[str]:
        """Fields of the receipt that no repetition checks."""
        digests = ("training_receipt", "request_sha256", "response_sha256")
        given = [name for name in digests if getattr(self.receipt, name) is not None]
        return ["model.name", "model.revision", "versions", *given]

    @property
    def prompt(self) -> str | None:
        """The prompt as the model reads it, special tokens too; None if nothing was repeated, and no model read."""
        if self.loaded is None:
            return None
        from roundlog.generation import token_text

        return token_text(self.loaded.tokenizer, self.receipt.prompt)

    @property
    def text(self) -> str | None:
        """The text as the receipt has it, right or wrong; None if nothing was repeated, and no model read."""
        if self.loaded is None:
            return None
        return text_behind(self.loaded.tokenizer, self.receipt.prompt, self.receipt.tokens)

    def plain(self) -> dict[str, object]:
        """The answer for programs."""
        found, other = self.found, self.other_code
        wrong = found.wrong_token if found is not None else None
        return {
            "right": self.is_right,
            "digest": self.receipt.digest,
            "signer": self.receipt.signer,
            "wrong_signature": self.wrong_signature,
            "wrong_training_receipt": self.wrong_training,
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
            output.show_line(f"WRONG: {file}: {self.wrong_signature or self.wrong_training}; nothing was repeated.")
            return
        total = len(self.receipt.tokens)
        if self.is_right:
            output.show_line(
                f"Right: the model chooses all {total} tokens of {file}, with their log-probabilities; "
                f"{signer_text(self.receipt)}."
            )
            output.show_line(
                f"Its name in the receipt, {self.receipt.model.name!r}, is the author's word; its weights, "
                "configuration and tokenizer are the receipt's by their hashes."
            )
            return
        output.show_line(f"WRONG: {self._wrong(file)}.")
        if self.other_code is not None:
            theirs, ours = self.other_code
            output.show_line(
                f"The receipt was written with transformers {theirs}, and this is {ours}: the model's code is that of "
                "transformers, so verify it with that version before you judge."
            )

    def show_prompt(self, file: Path) -> None:
        """Prints the prompt, and whose words it is."""
        if self.prompt is not None:
            _quote(
                f"Prompt of {file}, with what a chat template has put around it; whose words these are, a receipt does "
                "not say:",
                self.prompt,
            )

    def show_text(self, file: Path) -> None:
        """Prints the text, and whose words it is."""
        if self.text is not None:
            total = len(self.receipt.tokens)
            whose = "the model's words behind this prompt, all of them"
            if not self.is_right:
                whose = f"of {total} tokens the first {self.right_tokens} are the model's words, the others are not"
                if self.right_tokens == total:
                    whose = "the model's words, with probabilities that are not the model's"
            _quote(f"Text of {file}, {whose}:", self.text)

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
        from roundlog.generation import token_text

        assert self.loaded is not None
        return f"{token} {token_text(self.loaded.tokenizer, [token])[:60]!r}"


def _quote(title: str, text: str) -> None:
    """Prints a stranger's text, each line behind a mark, so that none of it passes for what we say."""
    output.show_line(title)
    for line in without_controls(text).split("\n"):
        output.show_line(f"| {line}")
