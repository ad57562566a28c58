"""What to say where a step's control flow depends on values: whose line asks, and which option switches it off."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch
from torch import nn

from roundlog.capture.lines import LIBRARIES, is_internal

_DISTRIBUTIONS = str(Path(torch.distributions.__file__).parent)
_AT_ALL = "decide by torch.where, or switch off the option of the model that asks for this"


@dataclass(frozen=True, slots=True)
class _Place:
    """A line of Python that an error passed through."""

    path: str
    line: int
    function: str
    in_model: bool
    """Whether it stands in a method of a module that is not PyTorch's own."""

    @property
    def is_users(self) -> bool:
        """Whether it is a line of a model, or of any code that is not installed: no helper of a library."""
        return not is_internal(self.path) and (self.in_model or not self.path.startswith(LIBRARIES))

    @property
    def text(self) -> str:
        return linecache.getline(self.path, self.line).strip()

    @property
    def name(self) -> str:
        return f"{Path(self.path).name}:{self.line}"


def control_flow(error: BaseException) -> str:
    """The sentence for an error that PyTorch raises where Python asks a traced tensor for its value."""
    places = list(_places(error))
    where = _whose(places)
    at = f" (at {where.name})" if where else ""
    return f"the step's control flow depends on values that it computes{at}: {_hint(places)}"


def _places(error: BaseException) -> Iterator[_Place]:
    """From the outermost to the innermost."""
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        yield _Place(code.co_filename, traceback.tb_lineno, code.co_name, _is_in_model(traceback.tb_frame))
        traceback = traceback.tb_next


def _is_in_model(frame: FrameType) -> bool:
    owner = frame.f_locals.get("self")
    return isinstance(owner, nn.Module) and not is_internal(frame.f_code.co_filename)


def _whose(places: list[_Place]) -> _Place | None:
    """The innermost line that is the user's."""
    return next((place for place in reversed(places) if place.is_users), None)


def _hint(places: list[_Place]) -> str:
    texts = [place.text for place in places if not is_internal(place.path)]
    names = [re.search(r"\w*layer_?drop\w*", text) for text in texts]
    option = next((name[0] for name in reversed(names) if name), "")
    if option or any("dropout_probability" in text for text in texts):
        return (
            "layer drop leaves layers out by chance, which a program of fixed operators cannot: "
            f"set {option or 'layerdrop'}=0 in the model's config"
        )
    if any(place.path.startswith(_DISTRIBUTIONS) for place in places):
        return "the distribution checks its arguments: make it with validate_args=False"
    if any(place.function == "_detect_is_causal_mask" for place in places):
        return (
            "the layer looks whether its mask is causal: pass is_causal=True with a causal mask and False with any "
            "other (tgt_is_causal and memory_is_causal to a decoder)"
        )
    if any("mask_indices" in place.function or "spec_augment" in place.function for place in places):
        return "SpecAugment draws its masks outside of the step: set apply_spec_augment=False in the model's config"
    return _AT_ALL
