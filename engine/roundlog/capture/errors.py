"""Errors that stop a capture: refusals of a task, and defects of this package, which are told apart. What PyTorch
raises where it cannot trace a step becomes a sentence for the model's author: the reason, whose line asks a traced
tensor for its value, and what to do instead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx import traceback
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from roundlog.capture.lines import LIBRARIES, SourcePlace, is_captures, is_internal, place_of_error, places_of


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
