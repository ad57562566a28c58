"""Several texts at once, each of which begins and ends by itself (continuous batching). A step reads the last token of
every text, in B rows of which none depends on another: each text has the bits that it has alone."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch

from roundlog.capture.huggingface import Sampling
from roundlog.execution import StoppedError
from roundlog.generation.generator import Cache, Choice, Generation, Generator, finished


@dataclass(eq=False, slots=True)
class TextRequest:
    """A text to be generated, as `Generator.generate` takes it. tell: called with every token by the thread that
    generates, which it must not hold up."""

    prompt: Sequence[int]
    new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: Sequence[int] = ()
    seed: int = 0
    ends: Callable[[int], bool] = lambda token: False
    likeliest: int = 0
    of_prompt: bool = False
    tell: Callable[[Choice], None] = lambda choice: None
    result: Future[Generation] = field(default_factory=Future)
    """The text, or the error."""
    dropped: threading.Event = field(default_factory=threading.Event)
    """Once it is set, the text is given up at its next token, with RequestDroppedError."""
    submitted: bool = False


class RequestDroppedError(Exception):
    """A text that nobody waits for any more."""


def _require_wanted(request: TextRequest) -> None:
    if request.dropped.is_set():
        raise RequestDroppedError("the text was given up: ask again")


class _Row:
    """A text in a row of the batch."""

    def __init__(self, request: TextRequest) -> None:
        self.request = request
        self.tokens = list(request.prompt)
        self.choices: list[Choice] = []
        self.prompt_choices: list[Choice] = []


class BatchGenerator:
    """A thread that generates texts by one model. The generator is its own while it runs."""

    def __init__(self, generator: Generator, rows: int = 8) -> None:
        """rows: texts at once; others wait for their turn, first come, first served. Raises ValueError for no rows."""
        if rows < 1:
            raise ValueError(f"a batch of {rows} rows generates nothing: give at least 1")
        self._generator = generator
        self._rows: list[_Row | None] = [None] * rows
        self._cache: Cache = {}
        self._waiting: queue.SimpleQueue[TextRequest | None] = queue.SimpleQueue()
        self._closing = False
        self._lock = threading.Lock()
        """Held while a request is put into the line, or the line is closed."""
        self._reading: Iterator[None] | None = None
        self._read_for: TextRequest | None = None
        """The request whose prompt is being read."""
        self._thread = threading.Thread(target=self._run, name="batch generator", daemon=True)
        self._thread.start()

    def submit(self, request: TextRequest) -> Future[Generation]:
        """The text to be, of a request that waits from now on. Raises CaptureError for one that cannot be generated,
        RuntimeError once this is closed."""
        self._generator.require(request.prompt, request.new_tokens, request.stop, request.seed)
        with self._lock:
            if self._closing:
                raise RuntimeError("no more texts are generated here: it is closed")
            if request.submitted:
                raise RuntimeError("a request is submitted once: make another one")
            request.submitted = True
            self._waiting.put(request)
        return request.result

    def close(self) -> None:
        """Gives up all requests, and ends the thread."""
        with self._lock:
            self._closing = True
            self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        why: BaseException = RequestDroppedError("no more texts are generated here: ask again later")
        try:
            while not self._closing:
                self._turn()
        except BaseException as error:
            # Nobody may wait for ever, whatever the error.
            why = error
        finally:
            with self._lock:
                self._closing = True
            self._give_up(why)

    def _turn(self) -> None:
        """One chunk of a new prompt, and then a token of everybody else's text."""
        if self._reading is None and None in self._rows:
            self._admit(wait=not any(self._rows))
        if self._reading is not None:
            next(self._reading, None)
        self._step()

    def _give_up(self, why: BaseException) -> None:
        left = [row.request for row in self._rows if row is not None]
        if self._read_for is not None:
            left.append(self._read_for)
        while not self._waiting.empty():
            if (request := self._waiting.get()) is not None:
                left.append(request)
        for request in left:
            if not request.result.cancel() and not request.result.done():
                request.result.set_exception(why)

    def _admit(self, *, wait: bool) -> None:
        """Begins with the next request, if there is one, or when there is one."""
        try:
            request = self._waiting.get(block=wait)
        except queue.Empty:
            return
        if request is None or not request.result.set_running_or_notify_cancel():
            return
        self._read_for, self._reading = request, self._read(_Row(request))

    def _read(self, row: _Row) -> Iterator[None]:
        """Reads a prompt, chunk by chunk, and puts the text into a free row."""
        request, generator = row.request, self._generator
        try:
            _require_wanted(request)
            generator.try_model(batch=len(self._rows))
            alone: Cache = {}
            last = torch.empty(0)
            for start, logits in generator.read(request.prompt, alone):
                if request.of_prompt:
                    row.prompt_choices += generator.likelihoods(logits, request.prompt[start + 1 :], request.likeliest)
                last = logits[-1:]
                yield
                _require_wanted(request)
            place = self._rows.index(None)
            if not self._cache:
                self._cache = generator.new_cache(len(self._rows))
            for name, states in self._cache.items():
                self._cache[name] = states.clone()
                self._cache[name][place] = alone[name][0]
            if self._chosen(row, last):
                self._rows[place] = row
        except Exception as error:
            # The error is that of its own request; the others' texts go on.
            request.result.set_exception(error)
        self._read_for = self._reading = None

    def _step(self) -> None:
        """Reads the last token of every text, and chooses the next one."""
        if not any(self._rows):
            return
        # An empty row reads what another one reads: a token whose numbers are finite, as far as any are.
        some = next(row.tokens[-1:] for row in self._rows if row is not None)
        tokens = [some if row is None else row.tokens[-1:] for row in self._rows]
        positions = [0 if row is None else len(row.tokens) - 1 for row in self._rows]
        try:
            found: torch.Tensor | None = self._generator.step(tokens, positions, self._cache)
        except StoppedError:
            # A number that is not finite, of one text, is no matter of the others'.
            found = None
        except Exception as error:
            for place, row in enumerate(self._rows):
                if row is not None:
                    row.request.result.set_exception(error)
                self._rows[place] = None
            return
        for place, row in enumerate(self._rows):
            if row is None:
                continue
            try:
                logits = self._alone(place, row) if found is None else found[place]
                goes_on = self._chosen(row, logits)
            except Exception as error:
                row.request.result.set_exception(error)
                goes_on = False
            if not goes_on:
                self._rows[place] = None

    def _alone(self, place: int, row: _Row) -> torch.Tensor:
        """Logits f32[1, V] of one row, read by itself. Raises StoppedError."""
        cache = {name: states[place : place + 1].clone() for name, states in self._cache.items()}
        logits = self._generator.step([row.tokens[-1:]], [len(row.tokens) - 1], cache)
        for name, states in cache.items():
            self._cache[name] = self._cache[name].clone()
            self._cache[name][place] = states[0]
        return logits[0]

    def _chosen(self, row: _Row, logits: torch.Tensor) -> bool:
        """Chooses the next token of a text. Returns whether it goes on."""
        request = row.request
        _require_wanted(request)
        choice = self._generator.choose(
            logits, row.tokens, request.sampling, request.seed, len(request.prompt), request.likeliest
        )
        row.choices.append(choice)
        row.tokens.append(choice.token)
        request.tell(choice)
        reason = finished(row.choices, request.new_tokens, request.stop, request.ends)
        if reason is not None:
            request.result.set_result(Generation(tuple(row.choices), reason, tuple(row.prompt_choices)))
        return reason is None
