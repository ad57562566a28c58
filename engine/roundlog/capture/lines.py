"""Lines of the user's code that traced operators came from, through the backward pass too, and lines that an error
passed through."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

_CAPTURE = str(Path(__file__).parent)
_TORCH = str(Path(torch.__file__).parent)


def _packages(entry: str) -> Iterator[str]:
    """The libraries that lie in a folder of Python's path: all of it, or what pip notes that it has put there."""
    folder = Path(entry)
    if folder.name in ("site-packages", "dist-packages"):
        yield entry
    elif folder.is_absolute():  # a user's own modules may lie beside what `pip install --target` has put there
        lines = (line for record in folder.glob("*.dist-info/RECORD") for line in record.read_text().splitlines())
        for name in sorted({line.partition(",")[0].partition("/")[0] for line in lines} - {"", ".", ".."}):
            yield str(folder / name) + (os.sep if (folder / name).is_dir() else "")


LIBRARIES = (
    *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    # Libraries may lie elsewhere: in a user's or a distribution's folder, in another environment's that a .pth file
    # adds, or where pip --target has put them.
    *(package for entry in sys.path for package in _packages(entry)),
    str(Path(torch.__file__).parent.parent),
    # This package may lie elsewhere (pip install -e). Its examples are as a user's.
    *(str(part) for part in sorted(Path(__file__).parent.parent.iterdir()) if part.name != "examples"),
)
"""Folders and files of code that is not the user's."""


class SourceLines(TorchDispatchMode):
    """Active inside a traced step: gives every operator the place that it came from, as fx node metadata.

    In the forward pass that is the innermost frame of the user's code. An operator of the backward pass belongs to
    the forward operator with the same autograd sequence number, and takes its line."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._forward: dict[int, str] = {}
        self._fixed: str | None = None

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        place = self._fixed
        if place is None:
            place = _user_place(sys._getframe(1))
            # The autograd node of this operator has just been numbered, before its kernel is called.
            self._forward[torch._C._autograd._get_sequence_nr() - 1] = place
        with _announced(place):
            return func(*args, **(kwargs or {}))

    @contextmanager
    def backward_of(self, loss: torch.Tensor) -> Iterator[None]:
        """While gradients of `loss` are taken."""
        seen: set[Any] = set()
        todo = [loss.grad_fn]
        while todo:
            node = todo.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            node.register_prehook(self._announcer(self._forward.get(node._sequence_nr(), "")))
            todo.extend(following for following, _ in node.next_functions)
        self._fixed = ""
        try:
            yield
        finally:
            self._fixed = None

    def _announcer(self, place: str) -> Callable[[Any], None]:
        def announce(gradients: Any) -> None:
            self._fixed = place

        return announce

    @contextmanager
    def all_from(self, place: str) -> Iterator[None]:
        """While operators come from no line of the user's."""
        self._fixed = place
        try:
            yield
        finally:
            self._fixed = None


@contextmanager
def _announced(place: str) -> Iterator[None]:
    """Have operators that are traced now carry the place: fx copies the stack trace of the current metadata."""
    metadata = torch.fx.traceback.current_meta
    before = metadata.get("stack_trace")
    metadata["stack_trace"] = place
    try:
        yield
    finally:
        if before is None:
            metadata.pop("stack_trace", None)
        else:
            metadata["stack_trace"] = before


def is_captures(path: str) -> bool:
    """Whether a file of Python is capture's own."""
    return path.startswith(_CAPTURE)


def is_of_torch(path: str) -> bool:
    """Whether a file of Python is PyTorch's own."""
    return path.startswith(_TORCH)


def is_internal(path: str) -> bool:
    """Whether a file of Python is capture's or PyTorch's own."""
    return path.startswith((_CAPTURE, _TORCH, "<"))


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """A line of Python that an error passed through."""

    frame: FrameType
    line: int

    @property
    def path(self) -> str:
        return self.frame.f_code.co_filename

    @property
    def function(self) -> str:
        return self.frame.f_code.co_name

    @property
    def is_in_model(self) -> bool:
        """Whether it stands in a method of a module that is not PyTorch's own."""
        return isinstance(self.frame.f_locals.get("self"), nn.Module) and not is_internal(self.path)

    @property
    def is_users(self) -> bool:
        """Whether it is a line of a model, or of any code that is not installed: no helper of a library."""
        return not is_internal(self.path) and (self.is_in_model or not self.path.startswith(LIBRARIES))

    @property
    def text(self) -> str:
        return linecache.getline(self.path, self.line).strip()

    @property
    def name(self) -> str:
        return f"{Path(self.path).name}:{self.line}"


def places_of(error: BaseException) -> list[SourcePlace]:
    """The lines that an error passed through, from the outermost to the innermost."""
    traceback, found = error.__traceback__, []
    while traceback is not None:
        found.append(SourcePlace(traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    return found


def place_of_error(error: BaseException) -> str:
    """` (at layers.py:12, called from net.py:3)`: the innermost line outside of torch that an error passed through;
    where that is in a library, with the innermost that is not."""
    outside = [place for place in places_of(error) if not is_internal(place.path)]
    if not outside:
        return ""
    own = [place.name for place in outside if not place.path.startswith(LIBRARIES)]
    caller = f", called from {own[-1]}" if own and own[-1] != outside[-1].name else ""
    return f" (at {outside[-1].name}{caller})"


def place_of_call() -> str:
    """` (at net.py:12)`: the innermost line of the user's code that is running."""
    place = _user_place(sys._getframe(1))
    return f" (at {place})" if place else ""


def _user_place(frame: FrameType | None) -> str:
    while frame is not None:
        if not is_internal(frame.f_code.co_filename) and frame.f_code.co_filename != contextlib.__file__:
            return SourcePlace(frame, frame.f_lineno).name
        frame = frame.f_back
    return ""


def source_of(node: fx.Node) -> str:
    """`net.py:12`: where a traced operator came from; empty if nobody knows."""
    return str(node.meta.get("stack_trace") or "")
