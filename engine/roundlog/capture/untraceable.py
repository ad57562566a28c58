"""Reasons why PyTorch cannot trace a step, in a sentence for the model's author."""

from __future__ import annotations

import re

from roundlog.capture.lines import SourcePlace, places_of

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
