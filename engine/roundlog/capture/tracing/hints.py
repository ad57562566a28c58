"""What to say where a step's control flow depends on values: whose line asks, and which option switches it off."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from roundlog.capture.lines import Place, is_internal, places_of

_DISTRIBUTIONS = str(Path(torch.distributions.__file__).parent)
_AT_ALL = "decide by torch.where, or switch off the option of the model that asks for this"


def control_flow(error: BaseException) -> str:
    """The sentence for an error that PyTorch raises where Python asks a traced tensor for its value."""
    places = places_of(error)
    where = _whose(places)
    at = f" (at {where.name})" if where else ""
    return f"the step's control flow depends on values that it computes{at}: {_hint(places)}"


def _whose(places: list[Place]) -> Place | None:
    """The innermost line that is the user's."""
    return next((place for place in reversed(places) if place.is_users), None)


def _hint(places: list[Place]) -> str:
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
