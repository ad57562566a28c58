"""Errors that stop a capture."""

from torch.fx import traceback


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
