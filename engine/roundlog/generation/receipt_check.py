"""Receipts of texts, made of a generation and checked by a repetition: in one pass over the text, or token by token."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from roundlog.capture.huggingface import Sampling
from roundlog.generation.generation_receipt import (
    DTYPES,
    MODEL_HASHES,
    GenerationReceipt,
    ModelIdentity,
    likeliest_root,
    logprobs_root,
)
from roundlog.generation.generator import Choice, FinishReason, Generation, Generator

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
    """Whether all tokens are right, and their log-probabilities, or those of the prompt or of likeliest tokens, are
    others than the receipt's."""
    wrong_stop: bool = False
    """Whether the receipt's text ends at other tokens than the model's texts do, or its stop_texts end it elsewhere:
    nothing was repeated then."""

    prompt_choices: tuple[Choice, ...] = ()
    """The prompt's tokens behind its first, if the receipt tells of them and all is right."""

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
    stop_texts: Sequence[str] = (),
) -> GenerationReceipt:
    """The receipt of a generated text, unsigned."""
    return GenerationReceipt(
        model=loaded.identity,
        dtype=dtype_name(loaded.model),
        arithmetic=generator.arithmetic,
        versions=versions_with(tiebreak_version),
        prompt=tuple(prompt),
        sampling=sampling,
        seed=seed,
        max_new_tokens=max_new_tokens,
        stop=loaded.stop,
        tokens=tuple(generation.tokens),
        stop_texts=tuple(stop_texts),
        at_stop_text=generation.finish_reason is FinishReason.STOP and generation.choices[-1].token not in loaded.stop,
        training_receipt=training_receipt,
        **_roots(generation.prompt_choices, generation.choices),
    )


def versions_with(tiebreak_version: str) -> dict[str, str]:
    """Versions of what computes in this process, as receipts have them."""
    import transformers

    found = {"tiebreak": tiebreak_version, "torch": torch.__version__, "transformers": transformers.__version__}
    # What stands behind + names a build of the same version.
    return {name: version.partition("+")[0] for name, version in found.items()}


def _roots(prompt: Sequence[Choice], choices: Sequence[Choice]) -> dict[str, Any]:
    """The fields of a receipt on what was told of tokens. prompt: its tokens behind the first, if they were told."""
    told = [*prompt, *choices]
    count = len(choices[0].likeliest)
    return {
        "logprobs_root": logprobs_root([choice.logprob for choice in choices]),
        "prompt_logprobs_root": logprobs_root([choice.logprob for choice in prompt]) if prompt else None,
        "top_logprobs": count,
        "top_logprobs_root": likeliest_root([choice.likeliest for choice in told]) if count else None,
    }


def dtype_name(model: PreTrainedModel) -> str:
    """`bf16` or `fp32`: the format of a model's weights, as receipts have it."""
    return next(name for name, dtype in DTYPES.items() if dtype == model.dtype)


def other_model(named: ModelIdentity, loaded: LoadedModel) -> str | None:
    """Name of the first thing in which a model is not the one that a receipt names; None if it is that one."""
    return next((name for name in MODEL_HASHES if getattr(named, name) != getattr(loaded.identity, name)), None)


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
        generator.choose(torch.zeros(1, generator.vocabulary), receipt.prompt, receipt.sampling, receipt.seed, 1)
    return seconds + new * (time.monotonic() - began)


def check_text(
    receipt: GenerationReceipt,
    generator: Generator,
    *,
    stop: Sequence[int],
    ends: Callable[[int], bool] = lambda token: False,
    by_token: bool = False,
    tell: Callable[[Choice], None] = lambda choice: None,
) -> TextCheck:
    """Repeats a receipt's text by its model. stop: tokens that end the model's texts (`LoadedModel.stop`). ends: called
    with every token of it; whether the receipt's `stop_texts` end it there. by_token: as it was written, instead of in
    one pass. tell: called with every right token. Raises as `Generator.generate`, and ValueError for a generator of
    another arithmetic or format."""
    if (generator.arithmetic, dtype_name(generator.model)) != (receipt.arithmetic, receipt.dtype):
        raise ValueError(f"the receipt is of {receipt.dtype} and {receipt.arithmetic} products: repeat it by those")
    *before_end, at_end = [ends(token) for token in receipt.tokens]
    at_stop_text = at_end and receipt.tokens[-1] not in receipt.stop
    is_other_end = any(before_end) or at_stop_text is not receipt.at_stop_text
    if is_other_end or receipt.stop != tuple(sorted(set(stop))):
        return TextCheck(wrong_stop=True)
    found = list[Choice]()
    before = len(receipt.prompt) - 1 if receipt.prompt_logprobs_root is not None else 0
    for choice in _choices(receipt, generator, by_token):
        at = len(found) - before
        if at >= 0 and choice.token != receipt.tokens[at]:
            return TextCheck(at, choice)
        found.append(choice)
        if at >= 0:
            tell(choice)
    roots = _roots(found[:before], found[before:])
    is_other = any(getattr(receipt, name) != root for name, root in roots.items())
    return TextCheck(wrong_logprobs=is_other, prompt_choices=tuple(found[:before]))


def _choices(receipt: GenerationReceipt, generator: Generator, by_token: bool) -> Iterator[Choice]:
    told: dict[str, Any] = {
        "likeliest": receipt.top_logprobs,
        "of_prompt": receipt.prompt_logprobs_root is not None,
        "sampling": receipt.sampling,
        "seed": receipt.seed,
    }
    if not by_token:
        yield from generator.right_choices(receipt.prompt, receipt.tokens, **told)
        return
    made = generator.generate(
        receipt.prompt,
        new_tokens=len(receipt.tokens),
        stop=receipt.stop,
        **told,
    )
    yield from (*made.prompt_choices, *made.choices)
