"""Generation with a static cache, and its check in one pass. Shapes: a text of T tokens, L positions, W tokens read at
once, a vocabulary of V.

A program that reads W tokens at a position gives, behind each of them, the bits of W programs that read one: every
operator of it is correctly rounded, and an element of a row depends on that row, on the cache before it, and on exact
zeros where its mask hides the rest. So a prompt is read in chunks, and a finished text in as few passes as one likes.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from roundlog.capture import CaptureError
from roundlog.capture.huggingface import NOISE, Sampling, SamplingForm, check_generation
from roundlog.execution import StoppedError
from roundlog.generation.kept_programs import name_of, name_of_ours
from roundlog.generation.step_modules import ChunkReader, Likelihoods, TokenSampler, sampler_numbers
from roundlog.generation.step_program import StepProgram
from roundlog.operators.job_arithmetic import EXACT
from roundlog.program import Program

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CHUNK = 64
"""Tokens that are read at once, where there are as many."""

_SAMPLERS = 64
"""Programs that choose tokens that are kept. There are a dozen forms of sampling, but for small vocabularies, whose
likeliest tokens are sorted: a form for each number of them."""

_TRIED = 128
"""Positions, evenly apart, at which a model is tried: a vocabulary of logits is kept for each."""

_CACHE = ("buffer/keys_", "buffer/values_")

CAPTURES, TRIES, READS = GENERATION_STAGES = ("captures the model", "tries it", "reads the prompt")
"""Stages before the first token."""


class FinishReason(StrEnum):
    """The end of a text, as OpenAI's interface names it."""

    STOP = "stop"
    """Its last token is one of those that stop it."""
    LENGTH = "length"
    """It has as many tokens as were asked for."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A token that was chosen, and the logarithm of its probability by the model's own logits, an FP32 number."""

    token: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens there with theirs, as many as were asked for; of equal ones the lowest numbers first."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A generated text. choices: one for each new token; a token that stops it is the last of them."""

    choices: tuple[Choice, ...]
    finish_reason: FinishReason
    prompt_choices: tuple[Choice, ...] = ()
    """The prompt's tokens behind its first, where their probabilities were asked for."""

    @property
    def tokens(self) -> list[int]:
        return [choice.token for choice in self.choices]


def finished(
    choices: Sequence[Choice], new_tokens: int, stop: Sequence[int], ends: Callable[[int], bool]
) -> FinishReason | None:
    """The reason why a text ends behind these tokens; None if it goes on. ends: as `Generator.generate` has it."""
    if ends(choices[-1].token) or choices[-1].token in stop:
        return FinishReason.STOP
    return FinishReason.LENGTH if len(choices) == new_tokens else None


Cache = dict[str, torch.Tensor]
"""Keys and values by state name, [B, heads, L, width]; none where nothing was read yet."""


class Generator:
    """A causal language model of `transformers`, in FP32 or BF16, as programs that read and choose tokens."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        positions: int,
        chunk: int = CHUNK,
        arithmetic: str = EXACT,
        is_as_read: bool = False,
        tell: Callable[[str, float, str], None] = lambda stage, share, detail: None,
    ) -> None:
        """positions: of the cache; a prompt with its new tokens has at most as many. chunk: tokens that are read at
        once. arithmetic: of products of BF16 matrices, EXACT or a name of docs/arithmetic.md. No result depends on
        positions or chunk. is_as_read: whether the model is what `load_model` has read, and nobody has changed, so that
        its programs are kept for other processes. tell: called with one of `GENERATION_STAGES`, the share of it that is
        done, and what is done there now. Nothing is captured yet.

        Raises CaptureError for a model that nothing can be generated of, ValueError for numbers below 1."""
        if positions < 1 or chunk < 1:
            raise ValueError(f"{positions} positions and chunks of {chunk}: give at least 1 of each")
        check_generation(model, [[0]], max(1, positions - 1), ())
        self.model = model.eval()
        self.positions, self.chunk = positions, min(chunk, positions)
        self.vocabulary = model.config.get_text_config().vocab_size
        self.arithmetic = arithmetic
        self._is_as_read = is_as_read
        self._tell = tell
        self._readers: dict[tuple[int, int], StepProgram] = {}
        self._samplers: dict[SamplingForm, StepProgram] = {}
        self._likelihoods: dict[int, StepProgram] = {}
        self.on_tokens: Callable[[int], None] = lambda tokens: None
        """Called with numbers of tokens that were read or chosen, of the model's trial as well."""
        self._tried = set[bool]()
        self._refusal: str | None = None

    @property
    def programs(self) -> dict[tuple[int, int], Program]:
        """Programs that read, by (rows, tokens of a row) that they read at once: those that were needed so far."""
        return {shape: reader.program for shape, reader in self._readers.items()}

    def generate(
        self,
        prompt: Sequence[int],
        *,
        new_tokens: int,
        sampling: Sampling | None = None,
        stop: Sequence[int] = (),
        seed: int = 0,
        ends: Callable[[int], bool] = lambda token: False,
        likeliest: int = 0,
        of_prompt: bool = False,
        tell: Callable[[Choice], None] = lambda choice: None,
    ) -> Generation:
        """Text behind a prompt, to the bits of a job by `Task.from_causal_lm` of this prompt alone. ends: called with
        every token; whether the text ends with it, as one of `stop` does. likeliest: tokens to be told beside each.
        of_prompt: whether to tell the prompt's tokens, too. tell: called with every token as it is chosen.

        Raises CaptureError for what cannot be generated, and for a model that gives other logits with a cache than
        without one; StoppedError, MachineError."""
        self.require(prompt, new_tokens, stop, seed)
        self.try_model()
        how = sampling or Sampling()
        cache: Cache = {}
        told = list[Choice]()
        behind = torch.empty(0)
        for start, logits in self.read(prompt, cache, READS):
            told += self.likelihoods(logits, prompt[start + 1 :], likeliest) if of_prompt else ()
            behind = logits[-1:]
        tokens, choices = list(prompt), list[Choice]()
        while True:
            choice = self.choose(behind, tokens, how, seed, len(prompt), likeliest)
            choices.append(choice)
            tell(choice)
            tokens.append(choice.token)
            if (reason := finished(choices, new_tokens, stop, ends)) is not None:
                return Generation(tuple(choices), reason, tuple(told))
            behind = self.step([tokens[-1:]], [len(tokens) - 1], cache)[0]

    def right_choices(
        self,
        prompt: Sequence[int],
        tokens: Sequence[int],
        *,
        sampling: Sampling | None = None,
        seed: int = 0,
        likeliest: int = 0,
        of_prompt: bool = False,
    ) -> Iterator[Choice]:
        """The choices that are right behind a prompt and the tokens before each, up to the first token that is none of
        the model's; before them the prompt's tokens behind its first, if they are to be told, too. All are read in
        chunks, whoever has written them. Raises as `generate`."""
        self.require(prompt, len(tokens), (), seed)
        self.try_model(by_token=False)
        none = next((at for at, token in enumerate(tokens) if not 0 <= token < self.vocabulary), len(tokens) - 1)
        how, text = sampling or Sampling(), [*prompt, *tokens[: none + 1]]
        for start, logits in self.read(text[:-1], {}):
            if of_prompt:
                yield from self.likelihoods(logits, prompt[start + 1 :], likeliest)
            for place, row in enumerate(logits, start):
                if place >= len(prompt) - 1:
                    yield self.choose(row[None], text[: place + 1], how, seed, len(prompt), likeliest)

    def require(self, prompt: Sequence[int], new_tokens: int, stop: Sequence[int], seed: int = 0) -> None:
        """Raises CaptureError, in one sentence, for a prompt that so many tokens cannot be generated behind, or a seed
        that does not fit 64 bits."""
        check_generation(self.model, [prompt], new_tokens, stop)
        if not 0 <= seed < 1 << 64:
            raise CaptureError(f"the seed {seed} does not fit 64 bits: choose one in 0..2^64 - 1")
        if len(prompt) + new_tokens > self.positions:
            raise CaptureError(
                f"{len(prompt)} tokens and {new_tokens} new ones are more than the {self.positions} positions of the "
                "cache: give more positions, or ask for fewer tokens"
            )

    def seconds_of_step(self, token: int, width: int) -> float:
        """The time of a step that reads a token `width` times, without its capture."""
        if (1, width) not in self._readers:
            self._reader(1, width, partial(self._tell_capture, 0, 1))
        began = time.monotonic()
        with suppress(StoppedError):  # which says nothing of a text
            self.step([[token] * width], [0], {})
        return time.monotonic() - began

    def try_model(self, *, by_token: bool = True, batch: int = 1) -> None:
        """Raises CaptureError if the programs and the model itself, called on all positions at once, have other logits:
        of tokens drawn from the whole vocabulary, at positions up to the end of the cache, and in a branch. Tried once.
        by_token: tries the program that reads one token as well. batch: rows that will be read at once, for which it is
        captured."""
        if self._refusal is not None:
            raise CaptureError(self._refusal)
        if by_token in self._tried or True in self._tried:
            return
        shapes = [(1, self.chunk), *([(1, 1), (batch, 1)] if by_token else [])]
        missing = [shape for shape in dict.fromkeys(shapes) if shape not in self._readers]
        for number, shape in enumerate(missing):
            self._reader(*shape, partial(self._tell_capture, number, len(missing)))
        draw, last = torch.Generator().manual_seed(0), self.positions - 1
        tokens = torch.randint(self.vocabulary, (self.positions,), generator=draw).tolist()
        places = sorted({last * n // (_TRIED - 1) for n in range(_TRIED)})
        expected = dict(zip(places, self._logits_at(tokens, places), strict=True))
        size = float(max(map(torch.max, expected.values())) - min(map(torch.min, expected.values())))
        cache: Cache = {}

        def rows() -> Iterator[tuple[int, torch.Tensor]]:
            for start, logits in self.read(tokens, cache, TRIES):
                yield from ((place, row) for place, row in enumerate(logits, start) if place in expected)
            third = self.chunk // 3
            stem, branch = tokens[:third], tokens[third : 2 * third]
            branches = [(begin, third if begin else 0) for begin in (0, third, 2 * third) for _ in range(third)]
            for start, logits in self.read([*stem, *reversed(branch), *branch], {}, branches=branches):
                places_of_branch = enumerate(logits, start - third)
                yield from ((at, row) for at, row in places_of_branch if at >= third and at in expected)
            if by_token:
                # At any position: a window of a model's own is right at some.
                for at in sorted({places[len(places) * n // 4] for n in range(4)} | {last}):
                    yield at, self.step([[tokens[at]]], [at], cache)[0, 0]

        for place, row in rows():
            apart = float((row - expected[place]).abs().max())
            if not apart <= NOISE[self.model.dtype] * size:
                self._refusal = (
                    f"the model {type(self.model).__name__} gives other logits with a static cache than without one "
                    f"(by {apart / size:.2g} of their range): choose a model that does not"
                )
                raise CaptureError(self._refusal)
        self._tried.add(by_token)

    def _tell_capture(self, number: int, of: int, share: float) -> None:
        self._tell(CAPTURES, (number + share) / of, f"program {number + 1} of {of}")

    def _logits_at(self, tokens: Sequence[int], places: Sequence[int]) -> torch.Tensor:
        """The model's own logits, f32[n, V], behind tokens at n places, all read at once without a cache."""
        some: dict[str, Any] = {}
        if "logits_to_keep" in inspect.signature(self.model.forward).parameters:
            some = {"logits_to_keep": torch.tensor(places)}
        with torch.no_grad():
            logits: torch.Tensor = self.model(input_ids=torch.tensor([tokens]), use_cache=False, **some).logits[0]
        return (logits if some else logits[places]).float()

    def read(
        self, tokens: Sequence[int], cache: Cache, stage: str = "", branches: Sequence[tuple[int, int]] = ()
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Reads tokens. Gives (position, logits f32[n, V] behind n tokens from there on). stage: of
        `GENERATION_STAGES`, to be told; if any. branches: of the token at each position, where its branch begins, and
        how many of the first positions it attends to beside that, as if they stood directly before it."""
        for start in range(0, len(tokens), self.chunk):
            if stage:
                self._tell(stage, start / len(tokens), f"token {start:,} of {len(tokens):,}")
            part = list(tokens[start : start + self.chunk])
            width = len(part) if len(part) == 1 else self.chunk
            # The filling of the last chunk stands behind the text, and nothing attends to it before it is overwritten.
            # At the end of the cache, tokens before it are read again instead.
            first = min(start, self.positions - width)
            chunk = [*tokens[first:start], *part]
            try:
                filled = [*chunk, *[part[-1]] * (width - len(chunk))]
                logits = self.step([filled], [first], cache, branches[first : first + len(chunk)])[0]
            except StoppedError:
                # What fills the chunk may have stopped it: token by token, only the text itself can.
                alone = [self.step([[x]], [at], cache, branches[at : at + 1])[0] for at, x in enumerate(part, start)]
                yield start, torch.cat(alone)
            else:
                yield start, logits[start - first : len(chunk)]
            self.on_tokens(len(part))

    def step(
        self,
        tokens: Sequence[Sequence[int]],
        positions: Sequence[int],
        cache: Cache,
        branches: Sequence[tuple[int, int]] = (),
    ) -> torch.Tensor:
        """Logits f32[B, W, V] behind tokens, W of each of B rows, that are read at a position of each row; their keys
        and values go into the cache. Either B or W is 1. No row depends on another one. branches: as `read` has it, of
        the first tokens; those behind them are of the branch of the last."""
        shape = len(tokens), len(tokens[0])
        reader = self._readers.get(shape) or self._reader(*shape)
        given = {"buffer/tokens": torch.tensor(tokens), "buffer/position": torch.tensor(positions)}
        if branches:
            begins, seen = torch.tensor([*branches, *[branches[-1]] * (shape[1] - len(branches))]).T.contiguous()
            given |= {"buffer/begins": begins, "buffer/seen": seen}
        after = reader.run(given, cache)
        cache.update((name, state) for name, state in after.items() if name.startswith(_CACHE))
        return after["buffer/logits"]

    def new_cache(self, rows: int) -> Cache:
        """The cache of so many rows, before anything is read."""
        reader = self._readers.get((rows, 1)) or self._reader(rows, 1)
        return {name: state for name, state in reader.initial.items() if name.startswith(_CACHE)}

    def _reader(self, rows: int, width: int, tell: Callable[[float], None] = lambda share: None) -> StepProgram:
        name = name_of(self.model, rows, self.positions, width) if self._is_as_read else None
        made = StepProgram(ChunkReader(self.model, rows, self.positions, width), self.arithmetic, tell, name=name)
        for other in self._readers.values():
            # The weights are the same: one copy of them is enough.
            made.initial |= {name: x for name, x in other.initial.items() if name.startswith("parameter/")}
        self._readers[rows, width] = made
        return made

    def likelihoods(self, logits: torch.Tensor, tokens: Sequence[int], likeliest: int) -> list[Choice]:
        """Tokens as if they had been chosen by logits f32[n, V] before each: the first n, or fewer. likeliest: as
        `generate` has it."""
        count = min(len(logits), len(tokens))
        found = list[Choice]()
        for start in range(0, count, self.chunk):
            rows = logits[start : min(count, start + self.chunk)]
            width = min(self.chunk, 1 << (len(rows) - 1).bit_length())
            if width not in self._likelihoods:
                name = name_of_ours("likelihoods", width, self.vocabulary)
                self._likelihoods[width] = StepProgram(Likelihoods(width, self.vocabulary), name=name)
            program = self._likelihoods[width]
            filled = torch.cat([rows, rows[-1:].expand(width - len(rows), -1)])
            told = program.run({"buffer/logits": filled}, {})["buffer/logits"]
            found += [_choice(row, tokens[at], likeliest) for at, row in enumerate(told[: len(rows)], start)]
        return found

    def likelihoods_behind(self, prompt: Sequence[int], texts: Sequence[Sequence[int]]) -> list[list[Choice]]:
        """The tokens of each text behind a prompt as if they had been chosen, each with the likeliest one there. The
        texts are read behind each other, as branches of one prompt, and together have room in the cache. Raises as
        `generate`."""
        stem, expected = list(prompt[:-1]), [token for tokens in texts for token in tokens]
        self.require(prompt, len(expected), ())
        read, branches = list(stem), [(0, 0)] * len(stem)
        for tokens in texts:
            branches += [(len(read), len(stem))] * len(tokens)
            read += [prompt[-1], *tokens[:-1]]
        told = list[Choice]()
        for start, logits in self.read(read, {}, branches=branches):
            told += self.likelihoods(logits[max(0, len(stem) - start) :], expected[len(told) :], 1)
        rest = iter(told)
        return [list(islice(rest, len(tokens))) for tokens in texts]

    def choose(
        self,
        logits: torch.Tensor,
        tokens: Sequence[int],
        how: Sampling,
        seed: int,
        first: int,
        likeliest: int = 0,
    ) -> Choice:
        """The token behind those given, by logits f32[1, V] behind the last of them. first: number of the prompt's
        tokens among them. likeliest: as `generate` has it."""
        form = how.form(self.vocabulary)
        # The last one that was used goes last.
        sampler = self._samplers.pop(form, None) or self._sampler(form)
        self._samplers[form] = sampler
        if len(self._samplers) > _SAMPLERS:
            del self._samplers[next(iter(self._samplers))]
        position = len(tokens) - 1
        written = torch.zeros(1, self.positions, dtype=torch.int64)
        written[0, : len(tokens)] = torch.tensor(tokens)
        given = {"buffer/logits": logits, "buffer/tokens": written, "buffer/position": torch.tensor(position)}
        after = sampler.run(given | sampler_numbers(how, form, first, self.vocabulary), {}, seed=seed, step=position)
        self.on_tokens(1)
        return _choice(after["buffer/logits"][0], int(after["buffer/chosen"]), likeliest)

    def _sampler(self, form: SamplingForm) -> StepProgram:
        name = name_of_ours("sampler", form, self.vocabulary, self.positions)
        return StepProgram(TokenSampler(form, self.vocabulary, self.positions), name=name)


def _choice(logprobs: torch.Tensor, token: int, likeliest: int) -> Choice:
    """A token by log-probabilities f32[V] of all."""
    told: tuple[tuple[int, float], ...] = ()
    if likeliest:
        least = logprobs.topk(min(likeliest, len(logprobs))).values[-1]
        places = (logprobs >= least).nonzero()[:, 0]
        best = places[logprobs[places].sort(descending=True, stable=True).indices][:likeliest].tolist()
        told = tuple((one, float(logprobs[one])) for one in best)
    return Choice(token, float(logprobs[token]), told)
