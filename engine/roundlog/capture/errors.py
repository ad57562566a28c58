"""Errors that stop a capture: refusals of a task, and defects of this package, which are told apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.fx import traceback

from roundlog.capture.lines import is_captures, place_of_error, places_of


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
