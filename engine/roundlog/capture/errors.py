"""Errors that stop a capture: refusals of a task, and defects of this package, which are told apart. What PyTorch
raises where it cannot trace a step becomes a sentence for the model's author: the reason, whose line asks a traced
tensor for its value, and what to do instead. And lines of the user's code that traced operators came from, through the
backward pass too, and lines that an error passed through."""

from __future__ import annotations

import contextlib
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
    return isinstance(error, _ITS_OWN) and bool(passed) and is_captures(passed[-1].path)


@contextmanager
def told_from_refusals(operator: str = "", place: str = "") -> Iterator[None]:
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


_HIGHER_ORDER = re.compile(r"HigherOrderOperator (\w+)")
_BUILD_PATH = re.compile(
    r',? ?(?:at|from|in)? ?"?/[\w./+-]+\.(?:cpp|h|cu|cuh|py)"?(?::\d+|, line \d+)?'
    r"(?:, please report a bug to PyTorch\.)?"
)
_NAME = re.compile(r"aten\.[\w.]+")
_ADDRESS = re.compile(r" (?:object )?at 0x[0-9a-f]+")

_OF_UNKNOWN_SIZES = ("expected to contain only concrete integers", "Pending unbacked symbols", "NYI SymInt")
"""Words of PyTorch's errors where it does not go on with a size that it does not know."""


def reason(error: BaseException) -> str:
    """One line, without paths and addresses of the machine that it was built or run on."""
    text = str(error).strip()
    found = _HIGHER_ORDER.search(text)
    if found:
        name = found.group(1).removesuffix("_impl").removesuffix("_stack_output")
        return (
            f"torch.{name} chooses or repeats functions while a step runs, and programs are straight lines: decide by "
            "torch.where, or repeat with a loop of Python"
        )
    if any(map(_is_packed, places_of(error))) or text.startswith("'lengths' argument should be"):
        return "packed sequences have a shape that depends on values: pad the sequences and mask what is padding"
    if text.startswith("Could not guard on data-dependent expression"):
        return "a number that .item() took out of a tensor decides what is computed: decide by torch.where"
    if text.startswith("Trying to backward through the graph a second time"):
        return (
            "a loss goes back through what the backward pass of another has freed: compute it again in each loss, or "
            "cut it off by .detach()"
        )
    if "has been modified by an inplace operation" in text:
        return (
            "a loss goes back through what was computed with a tensor that has changed since, as an optimizer changes "
            "its parameters: compute it again after that, or cut it off by .detach()"
        )
    if any(words in text for words in _OF_UNKNOWN_SIZES):
        return "a shape depends on values: choose elements with torch.where or a mask instead"
    line = text.splitlines()[0] if text else type(error).__name__
    if isinstance(error, KeyError):
        line = f"KeyError: {line}"  # whose text is the key alone
    if _NAME.fullmatch(line):
        return f"the operator {line} is not supported"
    return _ADDRESS.sub("", _BUILD_PATH.sub("", line)).strip() or type(error).__name__


def _is_packed(place: SourcePlace) -> bool:
    """Whether it is a line of what torch.nn.utils.rnn does with packed sequences."""
    path = place.path.replace("\\", "/")
    if path.endswith("torch/nn/utils/rnn.py"):
        return "pack" in place.function
    return path.endswith("torch/nn/modules/rnn.py") and place.frame.f_locals.get("batch_sizes") is not None


_AT_ALL = "decide by torch.where"
_OPTION = ", or switch off the option of the model that asks for this"


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
    hint = _hint(places)
    takes = _TAKES_NUMBERS.search(text) or any(words in str(error) for words in _NO_NUMBERS)
    if hint == _AT_ALL and takes and not _DECIDES.search(text):
        return (
            f"the step turns a tensor that it computes into numbers of Python{at}: remove this if it only prints or "
            "logs (.item() in print or in an f-string may stay; every loss stands in the run's history.jsonl, which "
            "`tiebreak plot` shows), or compute with the tensor itself"
        )
    if hint == _AT_ALL and _IS_FINITE.search(text):
        hint = (
            "a run stops by itself at a loss or a state that is not finite, so delete a check for that, and replace "
            "single values by torch.where or torch.nan_to_num"
        )
    elif hint == _AT_ALL and where is not None and where.path.startswith(LIBRARIES):
        hint += _OPTION
    return f"the step's control flow depends on values that it computes{at}: {hint}"


def _hint(places: list[SourcePlace]) -> str:
    texts = [place.text for place in places if not is_internal(place.path)]
    names = [re.search(r"\w*layer_?drop\w*", text) for text in texts]
    option = next((name[0] for name in reversed(names) if name), "")
    if option or any("dropout_probability" in text for text in texts):
        return (
            "layer drop leaves layers out by chance, which a program of fixed operators cannot: "
            f"set {option or 'layerdrop'}=0 in the model's config"
        )
    if any(place.function == "_detect_is_causal_mask" for place in places):
        return (
            "the layer looks whether its mask is causal: pass is_causal=True with a causal mask and False with any "
            "other (tgt_is_causal and memory_is_causal to a decoder)"
        )
    if any("mask_indices" in place.function or "spec_augment" in place.function for place in places):
        return "SpecAugment draws its masks outside of the step: set apply_spec_augment=False in the model's config"
    return _AT_ALL
