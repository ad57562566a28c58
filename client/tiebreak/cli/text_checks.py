"""The check of a text's receipt, by its model: what `tiebreak verify` does with one, and its answer."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, fields
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tiebreak.cli import output
from tiebreak.cli.failures import CommandError, WrongUsage
from tiebreak.cli.option_groups import option
from tiebreak.cli.receipt_files import digest_of_run, signer_text
from tiebreak.generated_text import StopTexts, prompt_text, text_behind, with_unseen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roundlog.generation import Choice, GenerationReceipt, LoadedModel, TextCheck

READS_MODEL = "reads the model"


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Options of the check of a text's receipt."""

    panel: ClassVar = "The receipt of a text"
    model: Path | None = option("Folder, or GGUF file, of the model that the text is of.", metavar="MODEL")
    training_receipt: Path | None = option(
        "Receipt of the run that this one has to name: the weights' origin.", metavar="FILE"
    )
    by_token: bool = option("Repeat the text token by token, as it was written, and not in one pass.", False)
    max_seconds: int = option(
        "Longest time of the repetition, once the model is read and captured. One that is expected to take longer is "
        "refused.",
        600,
        "S",
        min=1,
    )
    show_prompt: bool = option("Print the prompt, too.", False)
    show_text: bool = option("Print the text, too, and how much of it is the model's.", False)
    request: Path | None = option("Bytes of a server's request, to compare with the receipt.", metavar="FILE")
    response: Path | None = option(
        "Bytes of its response, with all events of a stream. It is compared with what the request leads to.",
        metavar="FILE",
    )

    def check(self, file: Path, receipt: GenerationReceipt, fault: str | None, json: bool) -> bool:
        """Return whether a receipt is right, which is printed, with its prompt and its text where they are asked for.
        fault: of its signature, in one clause; nothing is repeated then.

        Raises CommandError for the receipt of another model, FolderError, CaptureError, ProgramError."""
        if self.response is not None and self.request is None:
            raise WrongUsage("a response follows from its request: give --request, too.")
        started = time.monotonic()
        named = digest_of_run(self.training_receipt) if self.training_receipt is not None else None
        other = None if named in (None, receipt.training_receipt) else f"it does not name {self.training_receipt}"
        if fault is not None or other is not None:
            answer = _Answer(receipt, fault, wrong_training=None if other is None else f"{other} as its origin")
        else:
            answer = self._repeat(file, receipt)
        compared, wrong = self._compare(file, receipt, answer) if answer.loaded is not None else ([], [])
        is_right = answer.is_right and not wrong
        if json:
            words: dict[str, object] = {}
            if self.show_prompt:
                is_same = answer.other_prompt is None if answer.loaded is not None else None
                words |= {"prompt": answer.prompt, "prompt_as_tokenized": is_same}
            words |= {"text": answer.text} if self.show_text else {}
            checked = {*(f"{name}_sha256" for name in compared), *(["training_receipt"] if named is not None else [])}
            words |= {"compared": compared, "wrong_bodies": wrong, "right": is_right}
            words["unchecked"] = [name for name in answer.words_of_author if name not in checked]
            seconds = round(time.monotonic() - started, 3)
            output.show_json(answer.plain() | words | {"receipt": file, "seconds": seconds})
            return is_right
        answer.show(file)
        if answer.loaded is not None:
            _show_bodies(file, receipt, compared, wrong)
        if self.show_prompt:
            answer.show_prompt(file)
        if self.show_text:
            answer.show_text(file)
        return is_right

    def _repeat(self, file: Path, receipt: GenerationReceipt) -> _Answer:
        from roundlog.execution import StoppedError
        from roundlog.generation import Choice, Generator, check_text, expected_seconds, other_model

        assert self.model is not None
        model, by_token, max_seconds = self.model, self.by_token, self.max_seconds
        total = len(receipt.tokens)
        positions = len(receipt.prompt) + total
        with output.progress("Verifying", 2 * positions + total) as bar:
            bar.tell(READS_MODEL)
            loaded = read_model(model, receipt.dtype)
            if (other := other_model(receipt.model, loaded)) is not None:
                name = f"{receipt.model.name or 'which has no name'} {receipt.model.revision}".rstrip()
                raise CommandError(
                    f"{file} is of another model than that in {model}, whose {other} is not the receipt's: give the "
                    f"model that it is of, {name}."
                )
            generator = Generator(
                loaded.model, positions=positions, arithmetic=receipt.arithmetic, is_as_read=True, tell=bar.tell
            )
            expected = expected_seconds(receipt, generator, by_token=by_token)
            if expected > max_seconds:  # what was slow may have been the first time of its kind
                expected = min(expected, expected_seconds(receipt, generator, by_token=by_token))
            said = f"about {expected:,.0f} s, by the time that a part of its {positions:,} tokens took just now"
            if expected > max_seconds:
                raise CommandError(f"{file} takes {said}: give --max-seconds {int(expected * 1.5)} to wait for that.")
            output.warn(f"Verifying takes {said}, and is ended after {max_seconds:,} s.")
            right, done, began = list[Choice](), 0, time.monotonic()

            def on_tokens(tokens: int) -> None:
                nonlocal done
                done += tokens
                bar.done(done, "tokens read or chosen")
                if time.monotonic() - began > max_seconds:
                    raise CommandError(f"{file} takes longer than {max_seconds:,} s: give a higher --max-seconds.")

            generator.on_tokens = on_tokens
            try:
                ends = StopTexts(loaded.tokenizer, receipt.prompt, receipt.stop_texts)
                found = check_text(
                    receipt, generator, stop=loaded.stop, ends=ends, by_token=by_token, tell=right.append
                )
            except StoppedError as error:
                return _Answer(receipt, None, loaded, None, len(right), f"the repetition stops ({error})")
        return _Answer(receipt, None, loaded, found, len(right), choices=tuple(right))

    def _compare(self, file: Path, receipt: GenerationReceipt, answer: _Answer) -> tuple[list[str], list[str]]:
        """Return the names of the bodies that were compared with the receipt in a file, and a clause for each
        difference. Raises CommandError for files that cannot be read, and for a receipt of no server's answer."""
        if self.request is None:
            return [], []
        try:
            from tiebreak.server.completion_requests import MAX_REQUEST_BYTES
            from tiebreak.server.exchange_check import MAX_RESPONSE_BYTES, wrong_request, wrong_response
        except ModuleNotFoundError as error:
            raise CommandError(f"comparing bodies needs {error.name}: pip install 'tiebreak[serve]'.") from error
        request, response = _body(self.request, MAX_REQUEST_BYTES), _body(self.response, MAX_RESPONSE_BYTES)
        compared = [name for name, data in (("request", request), ("response", response)) if data is not None]
        for name in compared:
            if getattr(receipt, f"{name}_sha256") is None:
                raise CommandError(f"{file} has no {name}_sha256, as the receipt of a server's answer: leave --{name}.")
        assert answer.loaded is not None and request is not None
        wrong = [*wrong_request(receipt, answer.loaded, request)]
        if response is not None:
            told = (answer.found.prompt_choices, answer.choices) if answer.found and answer.is_right else None
            wrong += wrong_response(receipt, answer.loaded, response, request=request, told=told)
        return compared, wrong


def _body(path: Path | None, most: int) -> bytes | None:
    """Return the bytes of a file. Raises CommandError."""
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise CommandError(
            f"{path} cannot be read ({error.strerror}): name a file with the bytes of a body."
        ) from error
    if len(data) > most:
        raise CommandError(f"{path} has more than {most} bytes: no body of this server has.")
    return data


def _show_bodies(file: Path, receipt: GenerationReceipt, compared: Sequence[str], wrong: Sequence[str]) -> None:
    """Print what a server's bodies differ in, and which of them were not compared."""
    for clause in wrong:
        output.show_line(f"WRONG: {clause}.")
    if compared and not wrong:
        output.show_line(
            f"Right: {' and '.join(compared)} {'have' if len(compared) == 2 else 'has'} the bytes that {file} names, "
            "and the content that it follows from or leads to."
        )
    named = [name for name in ("request", "response") if getattr(receipt, f"{name}_sha256") is not None]
    if missing := [name for name in named if name not in compared]:
        output.show_line(
            f"{' and '.join(missing).capitalize()} {'were' if len(missing) == 2 else 'was'} not compared, and may say "
            f"something else: give {' and '.join(f'--{name}' for name in missing)}."
        )


def read_model(folder: Path, dtype: str | None) -> LoadedModel:
    """Read the model of a folder or a GGUF file, named as receipts can have it. Raises FolderError, CommandError."""
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
    """Return facts of a receipt, for people."""
    name = receipt.model.name + (f", revision {receipt.model.revision}" if receipt.model.revision else "")
    return {
        "receipt of": f"a text of {len(receipt.tokens)} tokens behind {len(receipt.prompt)}",
        "model": f"{name} (its author's word), in {receipt.dtype}, products {receipt.arithmetic}",
        "model weight hash": receipt.model.model_weight_hash,
        "tokens are": how_chosen(receipt) or "the likeliest ones",
        "end": how_ended(receipt) or "a token that ends texts",
    }


def how_chosen(receipt: GenerationReceipt) -> str:
    """Return the choice of tokens that a receipt names, in a clause; empty if each is the likeliest one."""
    how = receipt.sampling
    given = {field.name: getattr(how, field.name) for field in fields(how)}
    parts = [f"{field.name} {given[field.name]}"[:100] for field in fields(how) if given[field.name] != field.default]
    drawn = [f"seed {receipt.seed}"] if how.temperature > 0 else []
    return f"chosen by {', '.join(parts + drawn)}" if parts else ""


def how_ended(receipt: GenerationReceipt) -> str:
    """Return where a receipt's text was cut, in a clause; empty if a token of the model's ends it."""
    if receipt.at_stop_text:
        return f"cut where one of {list(receipt.stop_texts)} appeared in it"
    return f"cut at its maximum of {receipt.max_new_tokens} tokens" if receipt.finish_reason == "length" else ""


def plain_choice(receipt: GenerationReceipt) -> dict[str, object]:
    """Return the choice of a receipt's tokens, and why its text ends, for programs."""
    plain = receipt.plain()
    return {"likeliest": not how_chosen(receipt)} | {name: plain[name] for name in ("sampling", "finish_reason")}


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
        return prompt_text(self.loaded.tokenizer, self.receipt.prompt)

    @property
    def other_prompt(self) -> str | None:
        """The place of the first token that the tokenizer does not make of the prompt's text, in a clause; None without
        one."""
        from roundlog.generation import encoded_again

        assert self.loaded is not None
        try:
            again = encoded_again(self.loaded.tokenizer, self.receipt.prompt)
        except ValueError as error:
            return f"which the tokenizer does not take ({error})"
        places = enumerate(zip_longest(self.receipt.prompt, again), 1)
        return next((f"from token {at} on" for at, (one, two) in places if one != two), None)

    @property
    def text(self) -> str | None:
        """The text as the receipt has it, right or wrong; None if nothing was repeated, and no model read."""
        if self.loaded is None:
            return None
        return text_behind(self.loaded.tokenizer, self.receipt.prompt, self.receipt.tokens)

    def plain(self) -> dict[str, object]:
        """Return the answer for programs."""
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
            **plain_choice(self.receipt),
            "other_transformers": list(other) if other is not None else None,
        }

    def show(self, file: Path) -> None:
        """Print the answer for people."""
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
            if chosen := how_chosen(self.receipt):
                output.show_line(f"The tokens are not the likeliest ones, but {chosen}.")
            if ended := how_ended(self.receipt):
                output.show_line(f"The text was {ended}: the model has not ended it.")
            return
        output.show_line(f"WRONG: {self._wrong(file)}.")
        if self.other_code is not None:
            theirs, ours = self.other_code
            output.show_line(
                f"The receipt was written with transformers {theirs}, and this is {ours}: the model's code is that of "
                "transformers, so verify it with that version before you judge."
            )

    def show_prompt(self, file: Path) -> None:
        """Print the prompt, and whose words it is."""
        if self.prompt is not None:
            _quote(
                f"Prompt of {file}, with what a chat template has put around it; whose words these are, a receipt does "
                "not say",
                self.prompt,
            )
            if (other := self.other_prompt) is not None:
                output.show_line(
                    f"The model has read OTHER TOKENS than this text gives, {other}. Who types this text may get "
                    "another answer."
                )

    def show_text(self, file: Path) -> None:
        """Print the text, and whose words it is."""
        if self.text is not None:
            total = len(self.receipt.tokens)
            how = " and ".join(one for one in (how_chosen(self.receipt), how_ended(self.receipt)) if one)
            whose = f"the model's words behind this prompt, {how or 'the likeliest ones up to its end'}"
            if not self.is_right:
                whose = f"of {total} tokens the first {self.right_tokens} are the model's words, the others are not"
                if self.right_tokens == total:
                    whose = "the model's words, with probabilities that are not the model's"
            _quote(f"Text of {file}, {whose}", self.text)

    def _wrong(self, file: Path) -> str:
        found, total = self.found, len(self.receipt.tokens)
        if found is None:
            return f"behind {self.right_tokens} of {total} right tokens {self.stopped}"
        if found.wrong_stop:
            assert self.loaded is not None
            if self.receipt.stop == self.loaded.stop:
                return f"the text of {file} does not end where one of {list(self.receipt.stop_texts)} appears in it"
            return (
                f"the text of {file} ends at any of the tokens {list(self.receipt.stop)}, and texts of the model at "
                f"any of {list(self.loaded.stop)}; nothing was repeated"
            )
        if found.wrong_token is None or found.right is None:
            return f"all {total} tokens of {file} are the model's, and log-probabilities that it tells of are not"
        said = self.receipt.tokens[found.wrong_token]
        return (
            f"token {found.wrong_token + 1} of {total} in {file} is {self._named(said)}, and the model chooses "
            f"{self._named(found.right.token)}"
        )

    def _named(self, token: int) -> str:
        """Return a token's number and text."""
        from roundlog.generation import token_text

        assert self.loaded is not None
        return f"{token} {token_text(self.loaded.tokenizer, [token])[:60]!r}"


def _quote(title: str, text: str) -> None:
    """Print a stranger's text, each line behind a mark, so that none of it passes for what we say."""
    shown = with_unseen(text)
    output.show_line(f"{title}{'; characters that are not seen stand by their numbers' if shown != text else ''}:")
    for line in shown.split("\n"):
        output.show_line(f"| {line}")
