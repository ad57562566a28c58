"""Limits of time and memory for what reads a stranger's model, and the process that its template and tokenizer run in.

A template is a program (Jinja), and a tokenizer has regular expressions and replacements of its author's: either may
run for ever, or make gigabytes of a line. So both run beside this process, by this very file, which imports neither
torch nor anything of ours there. Messages are JSON, one way and the other.
"""

from __future__ import annotations

import ctypes
import json
import math
import operator
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MAX_SECONDS = 10.0
"""Longest processor time of reading a configuration, a tokenizer and a header. Longest time on the wall of a prompt of
few words; one of many has a second more for every 100,000 characters."""
MAX_MEMORY = 1 << 30
"""Most bytes that either takes beside what the process has before."""
WEIGHTS_FACTOR = 3
"""Most bytes for each of a model's weights while they are read, beside these."""
WEIGHTS_SPEED = 5_000_000
"""Fewest bytes of weights that are read in a second, beside `START_SECONDS`."""
START_SECONDS = 120.0
"""Longest time on the wall of imports, and of reading on a machine that does other work."""
MAX_CHARACTERS = 16 << 20
"""Longest text of a template."""
_MAX_MESSAGE = 1 << 28


class PromptError(ValueError):
    """A prompt that a template or a tokenizer does not take, or that takes them too long. A clause without an end."""


class PromptProcess:
    """A process that renders and encodes prompts for one tokenizer. It ends with its last reference."""

    def __init__(self, tokenizer: str) -> None:
        """tokenizer: its JSON, as the library tokenizers writes it; empty for one that encodes nothing."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TIEBREAK_")}
        alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
        self._connection, other = Pipe()
        with other:
            self._process = subprocess.Popen(
                # Without -P, the modules of this folder would stand before all others.
                [sys.executable, "-P", __file__, str(other.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                env=kept | alone | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"},
            )
        self._end = weakref.finalize(self, _end, self._process)
        self._lock = threading.Lock()
        # Imports and reading before the first work of a kind do not count as time of a prompt.
        self._to_begin = {"render": {}, "tokens": {"tokenizer": tokenizer}}

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def render(self, template: str, messages: Sequence[dict[str, str]], tokens: dict[str, Any]) -> str:
        """Return the text of messages by a template. tokens: special ones by name. Raises PromptError."""
        work = {"work": "render", "template": template, "messages": list(messages), "tokens": tokens}
        return str(self._ask(work, sum(len(one) for message in messages for one in message.values())))

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Return the tokens of a text. special: with those that begin or end it. Raises PromptError."""
        return list(map(int, self._ask({"work": "encode", "text": text, "special": special}, len(text))))

    def decode(self, tokens: Sequence[int], *, skip_special: bool) -> str:
        """Return the text of tokens. Raises PromptError."""
        return str(self._ask({"work": "decode", "tokens": list(tokens), "skip": skip_special}, len(tokens)))

    def _ask(self, work: dict[str, Any], size: int) -> Any:
        kind = "render" if work["work"] == "render" else "tokens"
        with self._lock:
            if (begun := self._to_begin.pop(kind, None)) is not None:
                self._exchange({"work": f"begin {kind}"} | begun, START_SECONDS)
            return self._exchange(work, MAX_SECONDS + size / 100_000)

    def _exchange(self, work: dict[str, Any], seconds: float) -> Any:
        answer, is_late = None, False
        try:
            with suppress(OSError, EOFError, ValueError):
                self._connection.send_bytes(json.dumps(work | {"seconds": seconds}).encode())
                is_late = not self._connection.poll(seconds)
                answer = None if is_late else json.loads(self._connection.recv_bytes(_MAX_MESSAGE))
        finally:
            if answer is None:
                self._end()
        if answer is None:
            why = f"takes longer than {seconds:.0f} s" if is_late else "ended its process, as for want of memory"
            raise PromptError(why)
        if "error" in answer:
            raise PromptError(answer["error"])
        return answer["value"]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, and wait for it."""
    process.kill()
    process.wait()


_LOCK = threading.Lock()
_PROCESSES = weakref.WeakKeyDictionary[Any, PromptProcess]()
"""One for each tokenizer of `transformers` that is alive."""


def _process_of(tokenizer: Any) -> PromptProcess:
    """Return the process of a tokenizer of `transformers`; one for each that is alive."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    with _LOCK:
        process = _PROCESSES.get(tokenizer)
        if process is None or not process.is_alive:
            process = PromptProcess(backend.to_str() if backend is not None else "")
            _PROCESSES[tokenizer] = process
        return process


def encoded_prompt(tokenizer: Any, prompt: str | Sequence[dict[str, str]], *, special: bool | None = None) -> list[int]:
    """Return the tokens of a text as it is, or of messages by the template of a tokenizer of `transformers`, as its own
    `apply_chat_template` has them. special: with the tokens that begin or end a text; default: of a text alone. Raises
    PromptError."""
    process = _process_of(tokenizer)
    special = isinstance(prompt, str) if special is None else special
    if isinstance(prompt, str):
        text = prompt
    else:
        tokens = json.loads(json.dumps(tokenizer.special_tokens_map, default=str))
        text = process.render(tokenizer.get_chat_template(), prompt, tokens)
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        return list(tokenizer(text, add_special_tokens=special)["input_ids"])
    return process.encode(text, special=special)


def decoded_text(tokenizer: Any, tokens: Sequence[int], *, skip_special: bool = False) -> str:
    """Return the text of tokens by a tokenizer of `transformers`, as its own `decode` has it. Raises PromptError."""
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        options = {"skip_special_tokens": skip_special, "clean_up_tokenization_spaces": False}
        return str(tokenizer.decode(list(tokens), **options))
    return _process_of(tokenizer).decode(tokens, skip_special=skip_special)


def encoded_again(tokenizer: Any, tokens: Sequence[int]) -> list[int]:
    """The tokens that a tokenizer makes of the text that some tokens are shown as: the same ones where a text, or
    messages by a template, gave them. Raises PromptError."""
    given, added = list(tokens), tokenizer.added_tokens_decoder

    # A tokenizer may put special tokens around a text itself, and drop or add a space behind each that stands in it.
    around = len(encoded_prompt(tokenizer, ""))
    parts = [decoded_text(tokenizer, list(some)) for _, some in groupby(given, key=added.__contains__)]
    found = [encoded_prompt(tokenizer, one, special=False) for one in (decoded_text(tokenizer, given), "".join(parts))]
    found += [
        encoded_prompt(tokenizer, decoded_text(tokenizer, given[at : len(given) - around + at]))
        for at in range(around + 1)
    ]
    return max(found, key=lambda one: (one == given, sum(map(operator.eq, one, given))))


def bound(seconds: float, memory: int = MAX_MEMORY) -> None:
    """Bound the processor time of this process from now on, and the memory that it takes beside what it has, where the
    system can."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used.ru_utime + used.ru_stime + seconds), hard))
        _bound_memory(memory)


def _bound_memory(memory: int) -> tuple[int, int]:
    """Bound the memory that this process takes beside what it has, without files that it maps to read them, such as
    weights. Return the bound before. Raises OSError, ImportError, ValueError."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + memory, before[1]))
    return before


@contextmanager
def limits(seconds: float, memory: int) -> Iterator[None]:
    """Bound the time on the wall, and the memory, of what this thread does within the block.

    Raises TimeoutError, MemoryError, and what others raise for want of memory."""
    me, before = threading.get_ident(), None
    late = ctypes.py_object(TimeoutError)
    timer = threading.Timer(seconds, lambda: ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(me), late))
    timer.daemon = True
    timer.start()
    try:
        with suppress(ImportError, OSError, ValueError):
            before = _bound_memory(memory)
        yield
    finally:
        timer.cancel()
        if before is not None:
            import resource

            resource.setrlimit(resource.RLIMIT_DATA, before)


class _Worker:
    """The child's side: work by name."""

    tokenizer: Any = None

    renderer: Any = None

    def begin_render(self, asked: dict[str, Any]) -> None:
        from transformers.utils.chat_template_utils import render_jinja_template

        self.renderer = render_jinja_template

    def begin_tokens(self, asked: dict[str, Any]) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_str(asked["tokenizer"])
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    def render(self, asked: dict[str, Any]) -> str:
        rendered, _ = self.renderer(
            conversations=[asked["messages"]],
            chat_template=asked["template"],
            add_generation_prompt=True,
            **asked["tokens"],
        )
        if len(rendered[0]) > MAX_CHARACTERS:
            raise PromptError(f"makes a text of more than {MAX_CHARACTERS} characters")
        return str(rendered[0])

    def encode(self, asked: dict[str, Any]) -> list[int]:
        return list(self.tokenizer.encode(asked["text"], add_special_tokens=asked["special"]).ids)

    def decode(self, asked: dict[str, Any]) -> str:
        return str(self.tokenizer.decode(asked["tokens"], skip_special_tokens=asked["skip"]))


def serve(asking: Connection) -> None:
    """Do the work that a connection asks for, until its other end is closed."""
    worker = _Worker()
    with suppress(EOFError):
        while True:
            asked = json.loads(asking.recv_bytes())
            # The limit of processor time is a little higher: it ends a child whose parent is gone.
            bound(asked["seconds"] + 5)
            try:
                answer = {"value": getattr(worker, asked["work"].replace(" ", "_"))(asked)}
            except MemoryError:
                answer = {"error": f"takes more memory than {MAX_MEMORY} bytes"}
            except BaseException as error:
                # Templates raise errors of every type, and tokenizers panics, which are no Exception.
                answer = {"error": " ".join(str(error).split())[:300] or type(error).__name__}
            asking.send_bytes(json.dumps(answer).encode())


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
