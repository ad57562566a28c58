"""Receipts of texts, made of a generation and checked by a repetition: in one pass over the text, or token by token."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from roundlog.capture.huggingface import Sampling
from roundlog.generation.generation_receipt import DTYPES, GenerationReceipt, logprobs_root
from roundlog.generation.generator import Choice, Generation, Generator

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from roundlog.generation.model_folder import LoadedModel


@dataclass(frozen=True, slots=True)
class TextCheck:
    """Findings of a repetition. It is right if nothing is found."""

    wrong_token: int | None = None
    """The first token, from 0, that the model does not choose behind those before it."""
    right: Choice | None = None
    """The token that it chooses there."""
    wrong_logprobs: bool = False
    """Whether all tokens are right, and their log-probabilities are others than the receipt's."""
    wrong_stop: bool = False
    """Whether the receipt's text ends at other tokens than the model's texts do: nothing was repeated then."""

    @property
    def is_right(self) -> bool:
        return self.wrong_token is None and not self.wrong_logprobs and not self.wrong_stop


def make_receipt(
    loaded: LoadedModel,
    generator: Generator,
    prompt: Sequence[int],
    generation: Generation,
    *,
    sampling: Sampling,
    seed: int,
    max_new_tokens: int,
    tiebreak_version: str,
    training_receipt: bytes | None = None,
) -> GenerationReceipt:
    """The receipt of a generated text, unsigned."""
    import transformers

    versions = {"tiebreak": tiebreak_version, "torch": torch.__version__, "transformers": transformers.__version__}
    return GenerationReceipt(
        model=loaded.identity,
        dtype=dtype_name(loaded.model),
        arithmetic=generator.arithmetic,
        # What stands behind + names a build of the same version.
        versions={name: version.partition("+")[0] for name, version in versions.items()},
        prompt=tuple(prompt),
        sampling=sampling,
        seed=seed,
        max_new_tokens=max_new_tokens,
        stop=loaded.stop,
        tokens=tuple(generation.tokens),
        logprobs_root=logprobs_root([choice.logprob for choice in generation.choices]),
        training_receipt=training_receipt,
    )


def dtype_name(model: PreTrainedModel) -> str:
    """`bf16` or `fp32`: the format of a model's weights, as receipts have it."""
    return next(name for name, dtype in DTYPES.items() if dtype == model.dtype)


def other_model(receipt: GenerationReceipt, loaded: LoadedModel) -> str | None:
    """Name of the first thing in which a model is not the receipt's; None if it is that one."""
    for name in ("model_weight_hash", "config_hash", "tokenizer_hash"):
        if getattr(receipt.model, name) != getattr(loaded.identity, name):
            return name
    return None


def expected_seconds(receipt: GenerationReceipt, generator: Generator, *, by_token: bool = False) -> float:
    """The time that `check_text` takes, without captures: chunks of the model's trial and of the text, each as long as
    one that is read here, and choices of tokens, likewise. A chunk takes the longer the more positions there are, since
    attention goes over all of them. Raises as `Generator.generate`."""
    prompt, new, first = len(receipt.prompt), len(receipt.tokens), receipt.prompt[0]
    generator.require(receipt.prompt, new, (), receipt.seed)
    chunks = -(-generator.positions // generator.chunk) - (-(prompt + new * (not by_token)) // generator.chunk)
    seconds = chunks * generator.seconds_of_step(first, generator.chunk)
    seconds += new * generator.seconds_of_step(first, 1) if by_token else 0
    for _ in range(2):  # once to capture it
        began = time.monotonic()
        generator.choose(torch.zeros(1, generator.vocabulary), receipt.prompt, receipt.sampling, receipt.seed)
    return seconds + new * (time.monotonic() - began)


def check_text(
    receipt: GenerationReceipt,
    generator: Generator,
    *,
    stop: Sequence[int],
    by_token: bool = False,
    tell: Callable[[Choice], None] = lambda choice: None,
) -> TextCheck:
    """Repeats a receipt's text by its model. stop: tokens that end the model's texts (`LoadedModel.stop`). by_token: as
    it was written, instead of in one pass. tell: called with every right token. Raises as `Generator.generate`, and
    ValueError for a generator of another arithmetic or format."""
    if (generator.arithmetic, dtype_name(generator.model)) != (receipt.arithmetic, receipt.dtype):
        raise ValueError(f"the receipt is of {receipt.dtype} and {receipt.arithmetic} products: repeat it by those")
    if receipt.stop != tuple(sorted(set(stop))):
        return TextCheck(wrong_stop=True)
    found = list[Choice]()
    for choice in _choices(receipt, generator, by_token):
        if choice.token != receipt.tokens[len(found)]:
            return TextCheck(len(found), choice)
        found.append(choice)
        tell(choice)
    return TextCheck(wrong_logprobs=logprobs_root([choice.logprob for choice in found]) != receipt.logprobs_root)


def _choices(receipt: GenerationReceipt, generator: Generator, by_token: bool) -> Iterator[Choice]:
    if not by_token:
        yield from generator.right_choices(receipt.prompt, receipt.tokens, sampling=receipt.sampling, seed=receipt.seed)
        return
    made = generator.generate(
        receipt.prompt,
        new_tokens=len(receipt.tokens),
        sampling=receipt.sampling,
        stop=receipt.stop,
        seed=receipt.seed,
    )
    yield from made.choices
