"""Errors that stop a capture: refusals of a task, and defects of this package, which are told apart. What PyTorch
raises where it cannot trace a step becomes a sentence for the model's author: the reason, whose line asks a traced
tensor for its value, and what to do instead. And lines of the user's code that traced operators came from, through the
backward pass too, and lines that an error passed through."""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import re
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
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx import traceback
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._python_dispatch import TorchDispatchMode

_CAPTURE = str(Path(__file__).parent)
_TORCH = str(Path(torch.__file__).parent)

LIBRARIES = (
    *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    # Libraries may lie elsewhere: in a user's or a distribution's folder, or in another environment's that a .pth file
    # adds.
    *(entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")),
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
        with traced_with("stack_trace", place):
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
            node.register_prehook(functools.partial(self._announce, self._forward.get(node._sequence_nr(), "")))
            todo.extend(following for following, _ in node.next_functions)
        with self.all_from(""):
            yield

    def _announce(self, place: str, gradients: Any) -> None:
        self._fixed = place

    @contextmanager
    def all_from(self, place: str) -> Iterator[None]:
        """While operators come from no line of the user's."""
        self._fixed = place
        try:
            yield
        finally:
            self._fixed = None


@contextmanager
def traced_with(key: str, value: Any) -> Iterator[None]:
    """Have operators that are traced now carry a value in their metadata: fx copies that of the current metadata."""
    metadata = traceback.current_meta
    before = metadata.get(key)
    metadata[key] = value
    try:
        yield
    finally:
        if before is None:
            metadata.pop(key, None)
        else:
            metadata[key] = before


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
    def is_users(self) -> bool:
        """Whether it is a line of a model that is not PyTorch's own, or of any code that is not installed."""
        is_in_model = isinstance(self.frame.f_locals.get("self"), nn.Module)
        return not is_internal(self.path) and (is_in_model or not self.path.startswith(LIBRARIES))

    @property
    def text(self) -> str:
        return linecache.getline(self.path, self.line).strip()

    @property
    def name(self) -> str:
        return f"{self.path.replace(os.sep, '/').rpartition('/')[2]}:{self.line}"  # pathlib would be seen as the step's


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


class CaptureError(ValueError):
    """The task cannot become a program: the message names the operator and the user's source line, or the setting,
    and what to do."""


class UnknownValueError(CaptureError):
    """A refusal for want of a value that is known if the buffers that no step writes are taken for known."""


def a_kind(thing: object) -> str:
    """The class of something, with its article: "an int", "a dict"."""
    name = type(thing).__name__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def unsupported(operator: str, why: str) -> CaptureError:
    """For an operator that is being traced: its line stands in the metadata of the trace."""
    place = str(traceback.current_meta.get("stack_trace") or "")
    return CaptureError(f"the operator aten.{operator}{f' (at {place})' if place else ''} cannot be lowered: {why}")


_PACKAGE = str(Path(__file__).parent.parent)

_ITS_OWN = (AssertionError, LookupError, AttributeError, NameError, ArithmeticError)
"""Errors that no code of this package raises on purpose."""


class DefectError(Exception):
    """Capture has failed where it should not: the message says that the task is not to blame, and names the operator
    and the user's line. The cause is the error itself."""

    def __init__(self, cause: BaseException, *, operator: str = "", place: str = "") -> None:
        """operator: that was being lowered, with its name in PyTorch. place: ` (at net.py:12)`, or nothing."""
        what = f" with the operator {operator}" if operator else ""
        told = " ".join(str(cause).split())
        said = f"{type(cause).__name__}: {told}" if told else type(cause).__name__
        super().__init__(f"a defect of Tiebreak, not of your script, stops the capture{what}{place}: {said}")
        self.operator = operator


def is_own_error(error: BaseException) -> bool:
    """Whether an error that ends a trace, in which code of the user's, PyTorch's and ours runs, comes from ours."""
    passed = places_of(error)
    return isinstance(error, _ITS_OWN) and bool(passed) and passed[-1].path.startswith(_CAPTURE)


@contextmanager
def raising_defects(operator: str = "", place: str = "") -> Iterator[None]:
    """Turns what is neither a refusal of this package's nor trouble of the machine's into a DefectError; an error that
    the user's code raises, as a function for the schedule may, into a CaptureError. operator, place: as DefectError has
    them. Raises MemoryError for what PyTorch says of memory in words."""
    try:
        yield
    except (OSError, MemoryError, DefectError):
        raise
    except Exception as error:
        if is_refusal(error):
            raise
        if "can't allocate memory" in str(error):
            raise MemoryError(str(error)) from error
        if is_users_error(error):
            said = f"{type(error).__name__}: {error}"
            raise CaptureError(f"your code fails with {said}{place_of_error(error)}: correct it") from error
        raise DefectError(error, operator=operator, place=place or place_of_error(error)) from error


def is_refusal(error: BaseException) -> bool:
    """Whether an error is one of this package's own, which say in a sentence what to do."""
    return type(error).__module__.partition(".")[0] == __name__.partition(".")[0]


def is_users_error(error: BaseException) -> bool:
    """Whether the code that has called for what fails is the user's, and not this package's."""
    for place in reversed(places_of(error)):
        if place.is_users or place.path.startswith(_PACKAGE):
            return place.is_users
    return False


_BUILD_PATH = re.compile(
    r',? ?(?:at|from|in)? ?"?/[\w./+-]+\.(?:cpp|h|cu|cuh|py)"?(?::\d+|, line \d+)?'
    r"(?:, please report a bug to PyTorch\.)?"
)
_NAME = re.compile(r"aten\.[\w.]+")
_ADDRESS = re.compile(r" (?:object )?at 0x[0-9a-f]+")

_SAID = (
    (
        "HigherOrderOperator",
        "torch.cond and its like choose or repeat functions while a step runs, and programs are straight lines: decide "
        "by torch.where, or repeat with a loop of Python",
    ),
    (
        "Trying to backward through the graph a second time",
        "a loss goes back through what the backward pass of another has freed: compute it again in each loss, or cut "
        "it off by .detach()",
    ),
    (
        "has been modified by an inplace operation",
        "a loss goes back through what was computed with a tensor that has changed since, as an optimizer changes its "
        "parameters: compute it again after that, or cut it off by .detach()",
    ),
    (
        "expected to contain only concrete integers|Pending unbacked symbols|NYI SymInt",
        "a shape depends on values: choose elements with torch.where or a mask instead",
    ),
    (
        "_ctc_loss",
        "ctc_loss is not captured: write CTC's recursion over the steps, in logarithms, by torch.logsumexp "
        "(`ctc_by_steps` in docs/how-to/scripts.md)",
    ),
)
"""Pattern of words of PyTorch's errors -> what to say instead."""


def reason(error: BaseException) -> str:
    """One line, without paths and addresses of the machine that it was built or run on."""
    text = str(error).strip()
    for words, sentence in _SAID:
        if re.search(words, text):
            return sentence
    line = text.splitlines()[0] if text else type(error).__name__
    if isinstance(error, KeyError):
        line = f"KeyError: {line}"  # whose text is the key alone
    if _NAME.fullmatch(line):
        return f"the operator {line} is not supported"
    return _ADDRESS.sub("", _BUILD_PATH.sub("", line)).strip() or type(error).__name__


_NO_NUMBERS = (
    "<class 'torch.Sym",
    "of type SymFloat",
    "of type SymInt",
    "data is not allocated yet",
    ".numpy() is not supported for tensor subclasses",
    ".tolist() is not supported for tensor subclasses",
    "Cannot access data pointer of Tensor",
)
"""Words of PyTorch's errors about `.tolist()` and `.numpy()`, and of any code's that is given what `.item()` gives."""

_TAKES_NUMBERS = re.compile(r"\b(?:float|int|complex|round)\(|\.(?:item|tolist|numpy)\(|\bnp\.|\bnumpy\.")
_DECIDES = re.compile(r"^(?:if|elif|while|assert)\b|\bif\b.*\belse\b")
_IS_FINITE = re.compile(r"isnan|isinf|isfinite")


def asks_for_values(error: BaseException) -> bool:
    """Whether an error is what PyTorch raises where Python asks a traced tensor for its value."""
    if isinstance(error, (GuardOnDataDependentSymNode, DataDependentOutputException)):
        return True
    return any(text in str(error) for text in _NO_NUMBERS)


def control_flow(error: BaseException) -> str:
    """The sentence for such an error."""
    places = places_of(error)
    where = next((place for place in reversed(places) if place.is_users), None)
    at, text = (f" (at {where.name})", where.text) if where else ("", "")
    said = f"the step's control flow depends on values that it computes{at}"
    if option := _option(places):
        return f"{said}: {option}"
    takes = _TAKES_NUMBERS.search(text) or any(words in str(error) for words in _NO_NUMBERS)
    if takes and not _DECIDES.search(text):
        return (
            f"the step turns a tensor that it computes into numbers of Python{at}: remove this if it only prints or "
            "logs (.item() in print or in an f-string may stay; every loss stands in the run's history.jsonl), or "
            "compute with the tensor itself"
        )
    hint = "decide by torch.where"
    if _IS_FINITE.search(text):
        hint = (
            "a run stops by itself at a loss or a state that is not finite, so delete a check for that, and replace "
            "single values by torch.where or torch.nan_to_num"
        )
    elif where is not None and where.path.startswith(LIBRARIES):
        hint += ", or switch off the option of the model that asks for this"
    return f"{said}: {hint}"


def _option(places: list[SourcePlace]) -> str:
    """What to do about options of models that are known to decide by values; empty for any other code."""
    text = " ".join(f"{place.frame.f_code.co_name} {place.text}" for place in places if not is_internal(place.path))
    if re.search("layer_?drop|dropout_probability", text):
        return (
            "layer drop leaves layers out by chance, which a program of fixed operators cannot: set layerdrop (or "
            "encoder_layerdrop and decoder_layerdrop) to 0 in the model's config"
        )
    if re.search("mask_indices|spec_augment", text):
        return "SpecAugment draws its masks outside of the step: set apply_spec_augment=False in the model's config"
    return ""
