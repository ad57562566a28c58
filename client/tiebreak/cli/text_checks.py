"""The check of a text's receipt, by its model: what `tiebreak verify` does with one, and its answer."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, fields
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tiebreak.cli import output
from tiebreak.cli.failures import CommandError, WrongUsage, extra
from tiebreak.cli.option_groups import option
from tiebreak.cli.receipt_files import Answer, read_receipt_of_run, signer_text
from tiebreak.generated_text import StopTexts, prompt_text, text_behind, with_unseen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roundlog.generation import Choice, GenerationReceipt, LoadedModel, TextCheck

READS_MODEL = "reads the model"
_BODIES = {"request": "request_sha256", "response": "response_sha256"}


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

    def check(self, file: Path, receipt: GenerationReceipt) -> Answer:
        """Repeat a text, and compare bodies of the exchange that it is from, where they are given.

        Raises WrongUsage, CommandError for the receipt of another model, FolderError, CaptureError, ProgramError."""
        if self.response is not None and self.request is None:
            raise WrongUsage("a response follows from its request: give --request, too.")
        checked = list[str]()
        if self.training_receipt is not None:
            if read_receipt_of_run(self.training_receipt).digest != receipt.training_receipt:
                other = f"it does not name {self.training_receipt} as its origin"
                lines = [f"WRONG: {file}: {other}; nothing was repeated."]
                return Answer(False, {"wrong_training_receipt": other}, lines)
            checked.append("training_receipt")
        text = self._repeat(file, receipt)
        compared, wrong = self._compare(file, receipt, text)
        checked += [f"{name}_sha256" for name in compared]
        digests = [name for name in ("training_receipt", *_BODIES.values()) if getattr(receipt, name) is not None]
        plain = text.plain() | {
            "compared": compared,
            "wrong_bodies": wrong,
            "unchecked": [
                name for name in ("model.name", "model.revision", "versions", *digests) if name not in checked
            ],
        }
        lines = text.lines(file) + _about_bodies(file, receipt, compared, wrong)
        if self.show_prompt:
            prompt, instead = prompt_text(text.loaded.tokenizer, receipt.prompt), text.other_prompt
            plain |= {"prompt": prompt, "prompt_as_tokenized": instead is None}
            whose = "with what a chat template has put around it; whose words these are, a receipt does not say"
            lines += _quoted(f"Prompt of {file}, {whose}", prompt)
            if instead is not None:
                lines.append(
                    f"The model has read OTHER TOKENS than this text gives, {instead}. Who types this text may get "
                    "another answer."
                )
        if self.show_text:
            said = text_behind(text.loaded.tokenizer, receipt.prompt, receipt.tokens)
            plain["text"] = said
            lines += _quoted(f"Text of {file}, {text.whose}", said)
        return Answer(text.is_right and not wrong, plain, lines)

    def _repeat(self, file: Path, receipt: GenerationReceipt) -> _Repeated:
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
                return _Repeated(receipt, loaded, None, right, f"the repetition stops ({error})")
        return _Repeated(receipt, loaded, found, right)

    def _compare(self, file: Path, receipt: GenerationReceipt, text: _Repeated) -> tuple[list[str], list[str]]:
        """Return the names of the bodies that were compared with the receipt in a file, and a clause for each
        difference. Raises CommandError for files that cannot be read, and for a receipt of no server's answer."""
        if self.request is None:
            return [], []
        with extra("serve", "comparing bodies needs"):
            from tiebreak.server.completion_requests import MAX_REQUEST_BYTES
            from tiebreak.server.exchange_check import MAX_RESPONSE_BYTES, wrong_request, wrong_response
        request, response = _body(self.request, MAX_REQUEST_BYTES), _body(self.response, MAX_RESPONSE_BYTES)
        compared = [name for name, data in (("request", request), ("response", response)) if data is not None]
        for name in compared:
            if getattr(receipt, _BODIES[name]) is None:
                raise CommandError(f"{file} has no {name}_sha256, as the receipt of a server's answer: leave --{name}.")
        assert request is not None
        wrong = [*wrong_request(receipt, text.loaded, request)]
        if response is not None:
            told = (text.found.prompt_choices, text.choices) if text.found and text.is_right else None
            wrong += wrong_response(receipt, text.loaded, response, request=request, told=told)
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


def _about_bodies(file: Path, receipt: GenerationReceipt, compared: Sequence[str], wrong: Sequence[str]) -> list[str]:
    """Return what a server's bodies differ in, and which of them were not compared."""
    lines = [f"WRONG: {clause}." for clause in wrong]
    if compared and not wrong:
        lines.append(
            f"Right: {' and '.join(compared)} {'have' if len(compared) == 2 else 'has'} the bytes that {file} names, "
            "and the content that it follows from or leads to."
        )
    named = [name for name, field in _BODIES.items() if getattr(receipt, field) is not None]
    if missing := [name for name in named if name not in compared]:
        lines.append(
            f"{' and '.join(missing).capitalize()} {'were' if len(missing) == 2 else 'was'} not compared, and may say "
            f"something else: give {' and '.join(f'--{name}' for name in missing)}."
        )
    return lines


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
class _Repeated:
    """A text as it was repeated."""

    receipt: GenerationReceipt
    loaded: LoadedModel
    found: TextCheck | None
    choices: Sequence[Choice]
    """Tokens that are the model's, before the first that is not, with the model's log-probabilities."""
    stopped: str | None = None

    @property
    def is_right(self) -> bool:
        return self.found is not None and self.found.is_right

    @property
    def other_code(self) -> tuple[str, str] | None:
        """Versions of transformers, the receipt's and this one, if they differ."""
        import transformers

        theirs, ours = self.receipt.versions["transformers"], transformers.__version__.partition("+")[0]
        return (theirs, ours) if theirs != ours else None

    @property
    def other_prompt(self) -> str | None:
        """The place of the first token that the tokenizer does not make of the prompt's text, in a clause; None without
        one."""
        from roundlog.generation import encoded_again

        try:
            again = encoded_again(self.loaded.tokenizer, self.receipt.prompt)
        except ValueError as error:
            return f"which the tokenizer does not take ({error})"
        places = enumerate(zip_longest(self.receipt.prompt, again), 1)
        return next((f"from token {at} on" for at, (one, two) in places if one != two), None)

    @property
    def whose(self) -> str:
        """Whose words the text is, in a clause."""
        total, right = len(self.receipt.tokens), len(self.choices)
        if self.is_right:
            how = " and ".join(one for one in (how_chosen(self.receipt), how_ended(self.receipt)) if one)
            return f"the model's words behind this prompt, {how or 'the likeliest ones up to its end'}"
        if right == total:
            return "the model's words, with probabilities that are not the model's"
        return f"of {total} tokens the first {right} are the model's words, the others are not"

    def plain(self) -> dict[str, object]:
        """Return the answer for programs."""
        found, other = self.found, self.other_code
        wrong = found.wrong_token if found is not None else None
        return {
            "wrong_training_receipt": None,
            "tokens": len(self.receipt.tokens),
            "right_tokens": len(self.choices),
            "wrong_token": wrong,
            "token": self.receipt.tokens[wrong] if wrong is not None else None,
            "chosen_token": found.right.token if found is not None and found.right is not None else None,
            "wrong_logprobs": found.wrong_logprobs if found is not None else False,
            "wrong_stop": found.wrong_stop if found is not None else False,
            "stopped": self.stopped,
            **plain_choice(self.receipt),
            "other_transformers": list(other) if other is not None else None,
        }

    def lines(self, file: Path) -> list[str]:
        """Return the answer for people."""
        if not self.is_right:
            lines = [f"WRONG: {self._wrong(file)}."]
            if self.other_code is not None:
                theirs, ours = self.other_code
                lines.append(
                    f"The receipt was written with transformers {theirs}, and this is {ours}: the model's code is that "
                    "of transformers, so verify it with that version before you judge."
                )
            return lines
        lines = [
            f"Right: the model chooses all {len(self.receipt.tokens)} tokens of {file}, with their log-probabilities; "
            f"{signer_text(self.receipt)}.",
            f"Its name in the receipt, {self.receipt.model.name!r}, is the author's word; its weights, configuration "
            "and tokenizer are the receipt's by their hashes.",
        ]
        if chosen := how_chosen(self.receipt):
            lines.append(f"The tokens are not the likeliest ones, but {chosen}.")
        if ended := how_ended(self.receipt):
            lines.append(f"The text was {ended}: the model has not ended it.")
        return lines

    def _wrong(self, file: Path) -> str:
        found, total = self.found, len(self.receipt.tokens)
        if found is None:
            return f"behind {len(self.choices)} of {total} right tokens {self.stopped}"
        if found.wrong_stop:
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

        return f"{token} {token_text(self.loaded.tokenizer, [token])[:60]!r}"


def _quoted(title: str, text: str) -> list[str]:
    """Return a stranger's text, each line behind a mark, so that none of it passes for what we say."""
    shown = with_unseen(text)
    unseen = "; characters that are not seen stand by their numbers" if shown != text else ""
    return [f"{title}{unseen}:", *(f"| {line}" for line in shown.split("\n"))]
