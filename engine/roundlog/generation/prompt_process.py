"""Prompts by a stranger's chat template and tokenizer, in a process whose time and memory are bounded.

A template is a program (Jinja), and a tokenizer has regular expressions and replacements of its author's: either may
run for ever, or make gigabytes of a line. So both run beside this process, by this very file, which imports neither
torch nor anything of ours there. Frames are a length of 4 bytes and JSON, one way and the other.
"""

from __future__ import annotations

import json
import operator
import os
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import IO, Any

MAX_SECONDS = 10.0
"""Longest time of a prompt of few words, on the wall; one of many has a second more for every 100,000 characters."""
MAX_MEMORY = 1 << 30
"""Most bytes that it takes beside what the process has before."""
MAX_CHARACTERS = 16 << 20
"""Longest text of a template."""
_START_SECONDS = 120.0
_MAX_FRAME = 1 << 28


class PromptError(ValueError):
    """A prompt that a template or a tokenizer does not take, or that takes them too long. A clause without an end."""


class PromptProcess:
    """A process that renders and encodes prompts for one tokenizer. It ends with its last reference."""

    def __init__(self, tokenizer: str) -> None:
        """tokenizer: its JSON, as the library tokenizers writes it; empty for one that encodes nothing."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TIEBREAK_")}
        alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
        self._process = subprocess.Popen(
            # Without -P, the modules of this folder would stand before all others.
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=kept | alone | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"},
        )
        self._end = weakref.finalize(self, _end, self._process)
        # Imports and reading before the first work of a kind do not count as time of a prompt.
        self._to_begin = {"render": {}, "encode": {"tokenizer": tokenizer}}

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def render(self, template: str, messages: Sequence[dict[str, str]], tokens: dict[str, Any]) -> str:
        """The text of messages by a template. tokens: special ones by name. Raises PromptError."""
        work = {"work": "render", "template": template, "messages": list(messages), "tokens": tokens}
        return str(self._ask(work, sum(len(one) for message in messages for one in message.values())))

    def encode(self, text: str, *, special: bool) -> list[int]:
        """The tokens of a text. special: with those that begin or end it. Raises PromptError."""
        return list(map(int, self._ask({"work": "encode", "text": text, "special": special}, len(text))))

    def _ask(self, work: dict[str, Any], characters: int) -> Any:
        if (begun := self._to_begin.pop(work["work"], None)) is not None:
            self._exchange({"work": f"begin to {work['work']}"} | begun, _START_SECONDS)
        return self._exchange(work, MAX_SECONDS + characters / 100_000)

    def _exchange(self, work: dict[str, Any], seconds: float) -> Any:
        given, answers = self._process.stdin, self._process.stdout
        assert given is not None and answers is not None
        is_late = threading.Event()

        def stop() -> None:
            is_late.set()
            self._process.kill()

        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            write_frame(given, work | {"seconds": seconds})
            answer = read_frame(answers)
        except (OSError, ValueError):
            answer = None
        finally:
            timer.cancel()
        if answer is None:
            self._end()
            why = (
                f"takes longer than {seconds:.0f} s" if is_late.is_set() else "ended its process, as for want of memory"
            )
            raise PromptError(why)
        if "error" in answer:
            raise PromptError(answer["error"])
        return answer["value"]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process, and waits for it."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        with suppress(OSError):
            if stream is not None:
                stream.close()


_LOCK = threading.Lock()
_PROCESSES = weakref.WeakKeyDictionary[Any, PromptProcess]()
"""One for each tokenizer of `transformers` that is alive."""


def encoded_prompt(tokenizer: Any, prompt: str | Sequence[dict[str, str]], *, special: bool | None = None) -> list[int]:
    """The tokens of a text as it is, or of messages by the template of a tokenizer of `transformers`, as its own
    `apply_chat_template` has them. special: with the tokens that begin or end a text; default: of a text alone. Raises
    PromptError."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    with _LOCK:
        process = _PROCESSES.get(tokenizer)
        if process is None or not process.is_alive:
            process = PromptProcess(backend.to_str() if backend is not None else "")
            _PROCESSES[tokenizer] = process
        special = isinstance(prompt, str) if special is None else special
        if isinstance(prompt, str):
            text = prompt
        else:
            tokens = json.loads(json.dumps(tokenizer.special_tokens_map, default=str))
            text = process.render(tokenizer.get_chat_template(), prompt, tokens)
        if backend is None:
            return list(tokenizer(text, add_special_tokens=special)["input_ids"])
        return process.encode(text, special=special)


def encoded_again(tokenizer: Any, tokens: Sequence[int]) -> list[int]:
    """The tokens that a tokenizer makes of the text that some tokens are shown as: the same ones where a text, or
    messages by a template, gave them. Raises PromptError."""
    given, added = list(tokens), tokenizer.added_tokens_decoder

    def text(some: list[int]) -> str:
        return str(tokenizer.decode(some, clean_up_tokenization_spaces=False))

    # A tokenizer may put special tokens around a text itself, and drop or add a space behind each that stands in it.
    around = len(encoded_prompt(tokenizer, ""))
    parts = [text(list(some)) for _, some in groupby(given, key=added.__contains__)]
    found = [encoded_prompt(tokenizer, one, special=False) for one in (text(given), "".join(parts))]
    found += [encoded_prompt(tokenizer, text(given[at : len(given) - around + at])) for at in range(around + 1)]
    return max(found, key=lambda one: (one == given, sum(map(operator.eq, one, given))))


def write_frame(out: IO[bytes], value: dict[str, Any]) -> None:
    """Writes a length and JSON."""
    data = json.dumps(value).encode()
    out.write(struct.pack(">I", len(data)) + data)
    out.flush()


def read_frame(given: IO[bytes]) -> dict[str, Any] | None:
    """The next value; None at the end. Raises ValueError for what is no frame."""
    head = given.read(4)
    if len(head) < 4:
        return None
    (length,) = struct.unpack(">I", head)
    data = given.read(length) if length <= _MAX_FRAME else b""
    if len(data) < length:
        return None
    value = json.loads(data)
    return value if isinstance(value, dict) else None


def _bound(seconds: float) -> None:
    """Bounds the memory and processor time of this process from now on, where the system can."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        # Should nobody be there any more who ends it.
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + seconds) + 5, hard))
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MAX_MEMORY, hard))


class _Worker:
    """The other side: work by name."""

    tokenizer: Any = None

    renderer: Any = None

    def begin_to_render(self, asked: dict[str, Any]) -> None:
        from transformers.utils.chat_template_utils import render_jinja_template

        self.renderer = render_jinja_template

    def begin_to_encode(self, asked: dict[str, Any]) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_str(asked["tokenizer"])
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    def render(self, asked: dict[str, Any]) -> str:
        _bound(asked["seconds"])
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
        _bound(asked["seconds"])
        return list(self.tokenizer.encode(asked["text"], add_special_tokens=asked["special"]).ids)


def serve() -> None:
    """Does the work that standard input asks for, until it ends."""
    worker, given, answers = _Worker(), sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    while (asked := read_frame(given)) is not None:
        try:
            write_frame(answers, {"value": getattr(worker, asked["work"].replace(" ", "_"))(asked)})
        except MemoryError:
            write_frame(answers, {"error": f"takes more memory than {MAX_MEMORY} bytes"})
        except Exception as error:
            # Templates raise errors of every type.
            write_frame(answers, {"error": " ".join(str(error).split())[:300] or type(error).__name__})


if __name__ == "__main__":
    serve()
