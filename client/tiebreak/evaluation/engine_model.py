"""The engine as a model of `lm-eval`, and its evaluation: each request answered by the model, or as a receipt says."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when its libraries are loaded: nothing is fetched

import datasets
import lm_eval
import lm_eval.utils
from jinja2 import BaseLoader, StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from lm_eval.api.model import TemplateLM
from lm_eval.tasks import TaskManager
from roundlog.capture.huggingface import Sampling
from roundlog.generation import Generator, LoadedModel

from tiebreak.evaluation.evaluation_receipt import Answer, Continuation, EvaluationRequest, Likelihood
from tiebreak.evaluation.task_files import TaskError, TaskFile
from tiebreak.generated_text import StopTexts, before_stop, text_behind

LM_EVAL_VERSION = version("lm-eval")

_MOST_NEW_TOKENS = 256
"""Tokens behind a prompt where a task names no number, as lm-eval has it."""

_ROOM = 64
"""Positions for further answers behind a prompt."""


# Templates of a stranger's tasks reach nothing but their document.
_sandbox = ImmutableSandboxedEnvironment(loader=BaseLoader(), undefined=StrictUndefined, keep_trailing_newline=True)
_sandbox.filters["regex_replace"] = lm_eval.utils.regex_replace
lm_eval.utils.env = _sandbox


class WrongCountError(Exception):
    """A receipt has more answers than its tasks have requests, fewer, or others."""


@dataclass(slots=True)
class Answers:
    """Answers to requests in the order in which lm-eval asks: of the model, or those that a receipt has."""

    claimed: Sequence[Answer] | None = None
    """A receipt's; None: all are the model's."""
    repeated: frozenset[int] = frozenset()
    """Places of those that the model has to give again."""
    requests: list[EvaluationRequest] = field(default_factory=list)
    given: list[Answer] = field(default_factory=list)
    first_wrong: int | None = None
    """Place of the first request that the model answers otherwise."""
    right: Answer | None = None
    """Its answer there."""

    def to_be_computed(self, requests: Sequence[EvaluationRequest]) -> list[int]:
        """Take the next requests; places in them, from 0, whose answers the model has to give. Raises
        WrongCountError."""
        start = len(self.requests)
        self.requests += requests
        if self.claimed is None:
            return list(range(len(requests)))
        if len(self.requests) > len(self.claimed):
            raise WrongCountError
        return [at for at in range(len(requests)) if start + at in self.repeated]

    def settle(self, computed: Mapping[int, Answer]) -> list[Answer]:
        """The answers to the requests that were taken last. computed: the model's, by their places in them. Raises
        WrongCountError for answers to others."""
        start = len(self.given)
        for at, request in enumerate(self.requests[start:]):
            claimed = computed[at] if self.claimed is None else self.claimed[start + at]
            if isinstance(claimed, Likelihood) is not bool(request.continuation):
                raise WrongCountError
            if self.claimed is not None and at in computed and computed[at] != claimed and self.first_wrong is None:
                self.first_wrong, self.right = start + at, computed[at]
            self.given.append(claimed)
        return self.given[start:]


class EngineModel(TemplateLM):  # type: ignore[misc]
    """A causal language model for lm-eval, whose answers do not depend on the machine or on their order."""

    def __init__(
        self,
        loaded: LoadedModel,
        arithmetic: str,
        answers: Answers,
        tell: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """answers: that are given, or filled. tell: called with numbers of computed answers: done, and in all so
        far."""
        super().__init__()
        self.answers = answers
        self.tokenizer = loaded.tokenizer
        self._loaded, self._arithmetic, self._tell = loaded, arithmetic, tell
        self._generator: Generator | None = None
        self._positions = int(loaded.model.config.get_text_config().max_position_embeddings)

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        return int(self.eot_token_id if self.tokenizer.bos_token_id is None else self.tokenizer.bos_token_id)

    @property
    def tokenizer_name(self) -> str:
        return ""

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        return list(self.tokenizer.encode(string, add_special_tokens=bool(add_special_tokens)))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        raise TaskError("tasks are evaluated without a chat template: leave it away.")

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        """Log-likelihoods of whole texts, window by window, as lm-eval cuts them."""
        cut = [self._windows(one.args[0]) for one in requests]
        told = iter(self._loglikelihood_tokens([(("", ""), *window) for windows in cut for window in windows]))
        return [sum(next(told)[0] for _ in windows) for windows in cut]

    def _windows(self, text: str) -> list[tuple[list[int], list[int]]]:
        found = lm_eval.utils.get_rolling_token_windows(
            token_list=self.tok_encode(text),
            prefix_token=self.prefix_token_id,
            max_seq_len=self._positions - 1,
            context_len=1,
        )
        return list(map(lm_eval.utils.make_disjoint_window, found))

    def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
        asked = []
        for _texts, context, continuation in requests:
            kept = [*context, *continuation][-self._positions :]
            asked.append(EvaluationRequest(tuple(kept[: -len(continuation)]), tuple(continuation)))
        computed = self._computed(asked, self._likelihoods)
        return [
            (answer.logprob, answer.is_greedy)
            for answer in self.answers.settle(computed)
            if isinstance(answer, Likelihood)
        ]

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        """The likeliest tokens behind prompts, up to one of the texts that end them."""
        asked = [self._generation(*one.args) for one in requests]
        computed = self._computed(asked, self._continuations)
        return [
            before_stop(text_behind(self.tokenizer, one.prompt, answer.tokens), one.stop_texts)
            for one, answer in zip(asked, self.answers.settle(computed), strict=True)
            if isinstance(answer, Continuation)
        ]

    def _generation(self, context: str, how: Mapping[str, Any]) -> EvaluationRequest:
        if how.get("do_sample") or how.get("temperature"):
            raise TaskError(
                "a task draws tokens, which evaluations do not: give do_sample: false in generation_kwargs."
            )
        until = how.get("until") or []
        most = int(how.get("max_gen_toks", _MOST_NEW_TOKENS))
        if not 0 < most < self._positions:
            raise TaskError(f"a task asks for {most} tokens: give a max_gen_toks below {self._positions}.")
        prompt = self.tok_encode(context)[-(self._positions - most) :] or [self.prefix_token_id]
        stop = tuple(text for text in ([until] if isinstance(until, str) else until) if text)
        return EvaluationRequest(tuple(prompt), max_new_tokens=most, stop_texts=stop)

    def _computed(
        self,
        asked: Sequence[EvaluationRequest],
        answers: Callable[[Generator, Sequence[EvaluationRequest]], Sequence[Answer]],
    ) -> dict[int, Answer]:
        """The model's answers that have to be computed, by their places; requests of one prompt together, as far as
        the cache has room."""
        places = sorted(self.answers.to_be_computed(asked), key=lambda at: asked[at].prompt)
        longest = max((asked[at].size for at in places), default=0)
        if places and (self._generator is None or self._generator.positions < longest):
            positions = min(-(-(longest + _ROOM) // 128) * 128, self._positions)  # few lengths, whose programs are kept
            self._generator = Generator(
                self._loaded.model, positions=positions, arithmetic=self._arithmetic, is_as_read=True
            )
            self._generator.try_model(by_token=False)
        found: dict[int, Answer] = {}
        while len(found) < len(places):
            assert self._generator is not None
            first = asked[places[len(found)]]
            room, group = self._generator.positions - len(first.prompt), list[int]()
            for at in places[len(found) :]:
                room -= len(asked[at].continuation)
                if asked[at].prompt != first.prompt or room < 0:
                    break
                group.append(at)
            found |= zip(group, answers(self._generator, [asked[at] for at in group]), strict=True)
            self._tell(len(found), len(places))
        return found

    def _likelihoods(self, generator: Generator, asked: Sequence[EvaluationRequest]) -> list[Answer]:
        answers = list[Answer]()
        for told in generator.likelihoods_behind(asked[0].prompt, [one.continuation for one in asked]):
            logprob = 0.0
            for one in told:  # `sum` adds otherwise from Python 3.12 on
                logprob += one.logprob
            answers.append(Likelihood(logprob, all(one.likeliest[0][0] == one.token for one in told)))
        return answers

    def _continuations(self, generator: Generator, asked: Sequence[EvaluationRequest]) -> list[Answer]:
        answers = list[Answer]()
        for one in asked:
            made = generator.generate(
                one.prompt,
                new_tokens=one.max_new_tokens,
                sampling=Sampling(),
                stop=self._loaded.stop,
                ends=StopTexts(self.tokenizer, one.prompt, one.stop_texts),
            )
            answers.append(Continuation(tuple(made.tokens)))
        return answers


def evaluate_tasks(model: EngineModel, tasks: Sequence[TaskFile], limit: int | None) -> list[dict[str, float]]:
    """The scores of each task by lm-eval, with the model's answers: to 12 digits, since C libraries' exponentials, of
    which perplexities are made, differ in the 16th. Raises TaskError, WrongCountError, and what the engine raises."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        manager = TaskManager(include_defaults=False)  # indexing lm-eval's own tasks takes longer than a small task
        loaded = manager.load([task.config for task in tasks])["tasks"]
        found = lm_eval.simple_evaluate(
            model=model,
            tasks=list(loaded.values()),
            task_manager=manager,
            limit=limit,
            bootstrap_iters=0,
            log_samples=False,
            verbosity="ERROR",
        )
    except (OSError, MemoryError):
        raise
    except Exception as error:
        # Templates, data and metrics of a stranger's raise errors of every type.
        if type(error).__module__.startswith(("roundlog", "tiebreak")):
            raise
        reason = " ".join(str(error).split())[:200]
        raise TaskError(
            f"lm-eval does not take a task ({type(error).__name__}: {reason}): correct its file."
        ) from error
    if model.answers.claimed is not None and len(model.answers.given) != len(model.answers.claimed):
        raise WrongCountError
    assert found is not None
    return [
        {
            name.removesuffix(",none"): float(f"{score:.12g}")
            for name, score in sorted(found["results"][task.name].items())
            if isinstance(score, int | float) and "_stderr" not in name and name != "sample_len"
        }
        for task in tasks
    ]
