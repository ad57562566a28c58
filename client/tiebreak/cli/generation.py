"""`tiebreak generate`: text of a causal language model, with one right answer on every machine, and its receipt."""

from __future__ import annotations

import enum
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TextIO

import typer

from tiebreak.cli import output
from tiebreak.cli.failures import CommandError, WrongUsage
from tiebreak.cli.option_groups import JSON, MODEL, command, option
from tiebreak.cli.receipt_files import SigningOptions, read_receipt_of_run, signer_text
from tiebreak.cli.text_checks import READS_MODEL, read_model
from tiebreak.generated_text import TextDecoder, without_controls

if TYPE_CHECKING:
    from roundlog.capture.huggingface import Sampling
    from roundlog.generation import Choice, LoadedModel

    from tiebreak.cli.receipt_files import AnyReceipt, ReceiptWriter

_MAX_PROMPT_BYTES = 16 << 20
_MOST_TOKENS = 1 << 20


class WeightFormat(enum.StrEnum):
    """Formats of weights that generate text."""

    FP32 = "fp32"
    BF16 = "bf16"


class ProductArithmetic(enum.StrEnum):
    """Names of arithmetics of products (`roundlog.definitions.tensor_core`)."""

    EXACT = "exact"
    HOPPER = "hopper"
    AMPERE = "ampere"
    VOLTA = "volta"


DTYPE = option("Format of the weights; default: as they are, and BF16 for FP16 and GGUF.", rich_help_panel="The model")
ARITHMETIC = option(
    "Products of BF16 matrices: `exact`, or as tensor cores of a family of GPUs add them (docs/arithmetic.md).",
    ProductArithmetic.EXACT,
    rich_help_panel="The model",
)
TRAINING_RECEIPT = "Receipt of the run that the weights come from, to be named in the text's receipt."


@dataclass(frozen=True, kw_only=True)
class ChoiceOptions:
    """Options of the choice of tokens, as those of `transformers`."""

    panel: ClassVar = "Choice of tokens"
    max_new_tokens: int = option("Most tokens to generate.", 128, "N", min=1, max=_MOST_TOKENS)
    temperature: float = option("0: the likeliest token. Above: drawn by softmax(logits / T).", 0.0, "T")
    top_k: int = option("Draw from the K likeliest tokens; 0: from all.", 0, "K", min=0)
    top_p: float = option("Draw from the fewest tokens with that share together.", 1.0, "P")
    repetition_penalty: float = option("Divide logits of tokens that were there before by R.", 1.0, "R")
    seed: int = option("Seed of the draws.", 0, "N", min=0, max=(1 << 64) - 1)

    def sampling(self) -> Sampling:
        """Return the choice as the engine knows it. Raises CaptureError for numbers that choose no token."""
        from roundlog.capture.huggingface import Sampling

        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            repetition_penalty=self.repetition_penalty,
        )


@dataclass(frozen=True, kw_only=True)
class ReceiptOptions(SigningOptions):
    """Options of the receipt."""

    panel: ClassVar = "The receipt"
    receipt: Path | None = option("File for the text's receipt, which `verify` takes.", metavar="FILE")
    training_receipt: Path | None = option(TRAINING_RECEIPT, metavar="FILE")

    def opened(self) -> tuple[ReceiptWriter, bytes | None] | None:
        """Return what writes the receipt, and the digest of the run's; None without one. What they need is checked
        before anything is computed. Raises WrongUsage, CommandError, ReceiptError, AccountError."""
        if self.receipt is None:
            if self.sign or self.signing_key is not None or self.training_receipt is not None:
                raise WrongUsage("there is no receipt to be signed, or to name another: add --receipt FILE.")
            return None
        if not self.receipt.parent.is_dir():
            raise CommandError(f"there is no directory {self.receipt.parent} for the receipt: make it.")
        run = self.training_receipt
        return self.writer(), read_receipt_of_run(run).digest if run is not None else None


@command(
    "generate",
    'tiebreak generate --model SmolLM2-135M-Instruct --prompt "What is the capital of France?"',
    "tiebreak generate --model SmolLM2-135M-Instruct --temperature 0.8 --top-k 50 --seed 7 --receipt text.json",
    "tiebreak generate --model SmolLM2-135M-Instruct --raw --receipt text.json < prompt.txt",
)
def generate(
    model: Path = option(MODEL, ..., "MODEL"),
    prompt: str | None = option("The prompt; without it, standard input is read.", metavar="TEXT"),
    raw: bool = option("Take the prompt as it is, without the chat template.", False),
    *,
    dtype: WeightFormat | None = DTYPE,
    arithmetic: ProductArithmetic = ARITHMETIC,
    choice: ChoiceOptions,
    wanted: ReceiptOptions,
    json: bool = JSON,
) -> None:
    """Generate text by a model in a folder: the same text on every machine, written to standard output as it comes.

    The prompt goes through the tokenizer's chat template if there is one. A receipt says which model wrote which tokens
    behind it; `tiebreak verify` checks that in one pass.
    """
    from roundlog.generation import Generator, make_receipt

    sampling, opened = choice.sampling(), wanted.opened()
    said = _prompt(prompt)
    started = time.monotonic()
    bar = output.Steps("Preparing", stages=4)
    try:
        bar.tell(READS_MODEL)
        loaded = read_model(model, dtype)
        tokens = tokens_of_prompt(loaded, said, raw=raw)
        positions = len(tokens) + choice.max_new_tokens
        generator = Generator(loaded.model, positions=positions, arithmetic=arithmetic, is_as_read=True, tell=bar.tell)
        stream = TextStream(TextDecoder(loaded.tokenizer, tokens), None if json else sys.stdout, bar.close)
        text = generator.generate(
            tokens,
            new_tokens=choice.max_new_tokens,
            sampling=sampling,
            stop=loaded.stop,
            seed=choice.seed,
            tell=stream.add,
        )
    finally:
        bar.close()
    stream.close()
    made: AnyReceipt | None = None
    if opened is not None and wanted.receipt is not None:
        writer, training = opened
        made = make_receipt(
            loaded,
            generator,
            tokens,
            text,
            sampling=sampling,
            seed=choice.seed,
            max_new_tokens=choice.max_new_tokens,
            tiebreak_version=version("tiebreak"),
            training_receipt=training,
        )
        made = writer.write(wanted.receipt, made, model=model)
    if json:
        facts: dict[str, object] = {
            "text": stream.text,
            "prompt_tokens": tokens,
            "tokens": text.tokens,
            "finish_reason": text.finish_reason,
            "tokens_per_second": stream.speed,
            "seconds": round(time.monotonic() - started, 3),
            "receipt": wanted.receipt,
            "digest": made.digest if made is not None else None,
            "signer": made.signer if made is not None else None,
        }
        output.show_json(facts)
        return
    speed = f" at {stream.speed} tokens a second" if stream.speed is not None else ""
    output.warn(
        f"{len(text.tokens)} new tokens behind {len(tokens)}{speed}, after {stream.began - started:.0f} s of reading "
        f"and capturing the model; end: {text.finish_reason}."
    )
    if made is not None:
        output.warn(f"Receipt in {wanted.receipt}, digest 0x{made.digest.hex()}; {signer_text(made)}.")


def _prompt(given: str | None) -> str:
    """Return the prompt, or standard input, without the end of its last line. Raises WrongUsage, CommandError."""
    if given is None:
        if sys.stdin.isatty():
            raise WrongUsage("there is no prompt: give --prompt TEXT, or pipe one into standard input.")
        data = typer.get_binary_stream("stdin").read(_MAX_PROMPT_BYTES + 1)
    else:
        data = os.fsencode(given)
    if len(data) > _MAX_PROMPT_BYTES:
        raise CommandError(f"the prompt has more than {_MAX_PROMPT_BYTES} bytes: give a shorter one.")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise CommandError(f"the prompt is no text in UTF-8 (byte {error.start}): convert it.") from error
    return text if given is not None else text.removesuffix("\n").removesuffix("\r")


def tokens_of_prompt(loaded: LoadedModel, said: str, *, raw: bool) -> list[int]:
    """Return the tokens of a prompt, in the model's chat template if it has one. Raises FolderError."""
    from roundlog.generation import prompt_tokens

    is_chat = not raw and bool(loaded.tokenizer.chat_template)
    return prompt_tokens(loaded.tokenizer, [{"role": "user", "content": said}] if is_chat else said)


class TextStream:
    """Text of tokens that is written as they come."""

    def __init__(self, decoder: TextDecoder, out: TextIO | None, begins: Callable[[], None]) -> None:
        """out: where the text goes, if anywhere. begins: called before the first of it is written."""
        self._decoder, self._out, self._begins = decoder, out, begins
        self._count = 0
        self.began = self._last = 0.0
        """Instant of the first token, in seconds of a steady clock."""

    @property
    def text(self) -> str:
        """Text of all tokens."""
        return self._decoder.whole

    def add(self, choice: Choice) -> None:
        """Take the next token."""
        self._count += 1
        self._last = time.monotonic()
        if self._count == 1:
            self.began = self._last
            self._begins()
        self._write(self._decoder.add(choice.token))

    def close(self) -> None:
        """Write the rest, and end the line."""
        self._write(self._decoder.end())
        if self._decoder.text != self.text:
            # A tokenizer that takes back what it has said: the whole text again, on a line of its own.
            self._write("\n" + self.text)
        self._write("\n")

    @property
    def speed(self) -> float | None:
        """Tokens a second behind the first one; None if there are none."""
        span = self._last - self.began
        return round((self._count - 1) / span, 2) if span > 0 else None

    def _write(self, text: str) -> None:
        if self._out is None or not text:
            return
        if self._out.isatty():
            # A model's text is not to control the terminal.
            text = without_controls(text)
        self._out.write(text)
        self._out.flush()
