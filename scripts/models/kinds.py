"""The kinds of models that the installed `transformers` knows, and the head that each is tried with."""

from __future__ import annotations

from dataclasses import dataclass

from transformers.models.auto import modeling_auto

HEADS: dict[str, str] = {
    "IMAGE_TEXT_TO_TEXT": "multimodal",
    "CAUSAL_LM": "text",
    "MASKED_LM": "text",
    "SEQ_TO_SEQ_CAUSAL_LM": "encoder-decoder",
    "IMAGE_CLASSIFICATION": "vision",
    "CTC": "audio",
    "SPEECH_SEQ_2_SEQ": "audio",
    "AUDIO_CLASSIFICATION": "audio",
    "VIDEO_CLASSIFICATION": "video",
    "SEMANTIC_SEGMENTATION": "segmentation",
    "OBJECT_DETECTION": "detection",
    "UNIVERSAL_SEGMENTATION": "segmentation",
    "TIME_SERIES_PREDICTION": "time series",
    "DEPTH_ESTIMATION": "depth",
    "ZERO_SHOT_IMAGE_CLASSIFICATION": "multimodal",
    "PRETRAINING": "pretraining",
    "": "base model",
}
"""Tables of `transformers`, in the order in which a kind is looked up -> what the page calls the family; the last is
the table of models without a head."""


@dataclass(frozen=True, slots=True)
class Kind:
    """An architecture with a head."""

    name: str
    """The model type of its config, as `transformers` calls it: `bert`."""
    head: str
    """A key of `HEADS`."""
    cls: str
    """The name of the model class."""

    @property
    def family(self) -> str:
        return HEADS[self.head]


def discover() -> dict[str, Kind]:
    """Name -> kind, in the order of `HEADS`."""
    found: dict[str, Kind] = {}
    for head in HEADS:
        table = getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES" if head else "MODEL_MAPPING_NAMES")
        for name, cls in table.items():
            found.setdefault(name, Kind(name, head, cls if isinstance(cls, str) else cls[0]))
    return found
