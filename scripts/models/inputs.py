"""Inputs of a model: fields by the names of its arguments, and a loss."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig

from models.kinds import Kind
from models.shrinking import WORDS

ROWS, BATCH, TOKENS = 4, 2, 8
Fields = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Inputs:
    """A dataset, and what is passed beside it."""

    fields: Fields
    fixed: dict[str, Any] = field(default_factory=dict)
    """Arguments that are the same for every batch; lists become tensors."""
    loss: str = "its own"
    """A key of `LOSSES`."""
    joined: tuple[str, ...] = ()
    """Fields that the model wants without the axis of the batch: the samples, one after another."""
    autocast: bool = False
    """True if model and loss are computed under `torch.autocast("cpu", torch.bfloat16)`."""


def _ctc(outputs: Any) -> torch.Tensor:
    """CTC of labels 1, 2, 3. The models' own picks the labels out by a mask, whose size depends on values."""
    log_probs = outputs.logits.log_softmax(-1).transpose(0, 1)
    steps, samples, _ = log_probs.shape
    labels = torch.tensor([[1, 2, 3]]).expand(samples, 3)
    lengths = (torch.full((samples,), count) for count in (steps, 3))
    return nn.functional.ctc_loss(log_probs, labels, *lengths)


LOSSES: dict[str, Callable[[Any], torch.Tensor]] = {
    "its own": lambda outputs: outputs.loss.mean(),
    "mean of squares": lambda outputs: first(outputs).float().square().mean(),
    "ctc_loss of its logits": _ctc,
}
"""Losses of a model's outputs. The mean of squares is of the first output that depends on a parameter."""


def loss_of(inputs: Inputs) -> Callable[[nn.Module, Mapping[str, torch.Tensor]], torch.Tensor]:
    """The loss of a task."""

    def loss(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        given = {name: x.flatten(0, 1) if name in inputs.joined else x for name, x in batch.items()}
        # Python may ask a tensor for its values if it was made inside of the step, from numbers.
        fixed = {
            name: torch.tensor(value) if isinstance(value, list) else value for name, value in inputs.fixed.items()
        }
        with torch.autocast("cpu", torch.bfloat16, enabled=inputs.autocast):
            return LOSSES[inputs.loss](model(**given, **fixed))

    return loss


def first(outputs: Any) -> torch.Tensor:
    """The first floating-point output that depends on a parameter."""
    for tensor in _tensors(outputs):
        if tensor.is_floating_point() and tensor.requires_grad:
            return tensor
    raise ValueError("no output depends on a parameter")


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def find(config: PreTrainedConfig, *names: str) -> Any:
    """The first setting of one of these names, in the config or in one nested in it."""
    for name in names:
        value = config.__dict__.get(name)
        if value is not None:
            return value
    for value in config.__dict__.values():
        if isinstance(value, PreTrainedConfig):
            found = find(value, *names)
            if found is not None:
                return found
    return None


def _whole(value: Any, otherwise: int) -> int:
    if isinstance(value, Mapping):
        value = next(iter(value.values()), otherwise)
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value if type(value) is int else otherwise


def words(count: int = TOKENS) -> torch.Tensor:
    return torch.randint(3, WORDS // 2, (ROWS, count))


def candidates(kind: Kind, model: nn.Module, config: PreTrainedConfig) -> Iterator[Inputs]:
    """Inputs that may fit, the likeliest first: with labels and without, and with sound in several layouts."""
    names = set(inspect.signature(model.forward).parameters)
    fixed: dict[str, Any] = {"use_cache": False} if "use_cache" in names else {}
    if "lengths" in names:
        fixed["lengths"] = [TOKENS] * BATCH
    if {"grid_thw", "image_grid_thw"} & names:
        yield from _gridded(kind, names, model, config, fixed)
    for fields in _fields(names, model, config):
        if kind.head == "CTC":
            yield Inputs(fields, fixed, loss="ctc_loss of its logits")
        for labels in _labels(kind, names, config, fields):
            yield Inputs(fields | labels, fixed)
        if kind.family == "multimodal" and "return_loss" in names:
            yield Inputs(fields, {"return_loss": True})
        yield Inputs(_decoded(names, fields), fixed, loss="mean of squares")


def _gridded(
    kind: Kind, names: set[str], model: nn.Module, config: PreTrainedConfig, fixed: dict[str, Any]
) -> Iterator[Inputs]:
    """Images of 4 x 4 patches, those of all samples in a row."""
    patch = _whole(find(config, "patch_size"), 8)
    channels = _whole(find(config, "in_channels", "in_chans", "num_channels"), 3)
    merged = _whole(find(config, "spatial_merge_size", "merge_size"), 1)
    grid = [[1, 4, 4]] * BATCH
    for frames in (_whole(find(config, "temporal_patch_size"), 1), 1):
        pixels = torch.randn(ROWS, 16, channels * frames * patch * patch)
        if "grid_thw" in names:
            for name in {"hidden_states", "pixel_values"} & names:
                yield Inputs({name: pixels}, {**fixed, "grid_thw": grid}, "mean of squares", (name,))
            continue
        image_word = find(config, "image_token_id", "image_token_index")
        if type(image_word) is not int:
            return
        marks = torch.full((ROWS, IMAGE_WORDS.get(id(model), 16 // merged**2)), image_word)
        before, after = (find(config, f"vision_{end}_token_id") for end in ("start", "end"))
        around = [torch.full((ROWS, 1), word) if type(word) is int else words(1) for word in (before, after)]
        text = {"input_ids": torch.cat([words(2), around[0], marks, around[1], words(3)], 1)}
        fields = {**text, "pixel_values": pixels}
        beside = {**fixed, "image_grid_thw": grid}
        if "mm_token_type_ids" in names:
            # Where images stand is asked by Python; here it is the same in every row.
            beside["mm_token_type_ids"] = (text["input_ids"][:BATCH] == image_word).long().tolist()
        for labels in _labels(kind, names, config, fields):
            yield Inputs(fields | labels, beside, joined=("pixel_values",))
        yield Inputs(fields, beside, "mean of squares", ("pixel_values",))


def _decoded(names: set[str], fields: Fields) -> Fields:
    """The inputs with the words of a decoder, which labels would have given."""
    return fields | ({"decoder_input_ids": words()} if "decoder_input_ids" in names else {})


def _fields(names: set[str], model: nn.Module, config: PreTrainedConfig) -> Iterator[Fields]:
    main = getattr(model, "main_input_name", "input_ids")
    text: Fields = {}
    if "input_ids" in names:
        image_word = find(
            config, "image_token_id", "image_token_index", "media_placeholder_token_id", "image_soft_token_id"
        )
        marks = (
            torch.full((ROWS, IMAGE_WORDS.get(id(model), 4)), image_word)
            if type(image_word) is int and "pixel_values" in names
            else None
        )
        text["input_ids"] = words() if marks is None else torch.cat([words(2), marks, words(4)], 1)
        if "bbox" in names:
            corners = torch.randint(0, 30, (ROWS, text["input_ids"].shape[1], 2))
            text["bbox"] = torch.cat([corners, corners + 20], -1)
    images = {}
    if "pixel_values" in names:
        images["pixel_values"] = _images(config)
    if "pixel_values_videos" in names and main == "pixel_values_videos":
        images["pixel_values_videos"] = _video(config)
    if "pixel_values" in names and main == "pixel_values" and not text:
        yield images
        yield {"pixel_values": _video(config)}
        yield {"pixel_values": _video(config).transpose(1, 2).contiguous()}
        yield {"pixel_values": _patches(config)}
        return
    for name in ("input_values", "input_features", "waveform", "audio_values"):
        if name in names and main == name:
            for sound in _sounds(config):
                yield {name: sound} | ({} if "decoder_input_ids" in names or "input_ids" not in names else text)
            return
    if images:
        yield text | images
    if images.keys() == {"pixel_values_videos"}:
        return
    if text:
        yield text
        return
    for name in ("inputs_embeds", "hidden_states"):
        if name in names:
            yield {name: torch.randn(ROWS, TOKENS, _whole(find(config, "hidden_size", "d_model"), 16))}
            return
    if main in names:
        yield {main: torch.randn(ROWS, TOKENS, _whole(find(config, "hidden_size"), 16))}


IMAGE_WORDS: dict[int, int] = {}
"""Number of places of a text that an image takes, by the model's identity: found out from what the model said."""


def learn(model: nn.Module, message: str) -> bool:
    """True if a model's complaint says how many places an image takes, which is then remembered."""
    numbers = re.search(r"tokens: (\d+).*features:? (\d+)", message)
    if not numbers or not int(numbers[1]):
        return False
    have = IMAGE_WORDS.get(id(model), 4)
    each = int(numbers[2]) * have // int(numbers[1])
    if each == have or not 0 < each <= 300:
        return False
    IMAGE_WORDS[id(model)] = each
    return True


def _images(config: PreTrainedConfig) -> torch.Tensor:
    size = _whole(find(config, "image_size", "img_size", "input_size"), 32)
    return torch.randn(ROWS, _whole(find(config, "num_channels", "in_channels", "in_chans"), 3), size, size)


def _video(config: PreTrainedConfig) -> torch.Tensor:
    frames = _whole(find(config, "num_frames", "frames_per_clip"), 4)
    one = _images(config)
    return torch.randn(ROWS, frames, *one.shape[1:])


def _patches(config: PreTrainedConfig) -> torch.Tensor:
    patch = _whole(find(config, "patch_size"), 8)
    return torch.randn(ROWS, 16, 3 * patch * patch)


def _sounds(config: PreTrainedConfig) -> Iterator[torch.Tensor]:
    bins = _whole(find(config, "num_mel_bins", "n_mels", "input_feat_per_channel", "feature_projection_input_dim"), 16)
    long = _whole(find(config, "max_source_positions"), 16)
    if find(config, "conv_stride", "conv_kernel", "audio_channels", "upsampling_ratios") is None:
        yield torch.randn(ROWS, bins, 2 * long)
        yield torch.randn(ROWS, _whole(find(config, "max_length"), 32), bins)
        yield torch.randn(ROWS, 32, bins)
        yield torch.randn(ROWS, 160, bins)
    yield torch.randn(ROWS, 3200)
    yield torch.randn(ROWS, 1, 3200)
    yield torch.randn(ROWS, 32, bins)


def _labels(kind: Kind, names: set[str], config: PreTrainedConfig, fields: Fields) -> Iterator[Fields]:
    if "labels" not in names:
        return
    count = _whole(getattr(config, "num_labels", None), 2)
    match kind.head:
        case "CAUSAL_LM" | "MASKED_LM" | "IMAGE_TEXT_TO_TEXT" if "input_ids" in fields:
            yield {"labels": fields["input_ids"].clone()}
        case "SEQ_TO_SEQ_CAUSAL_LM" | "SPEECH_SEQ_2_SEQ":
            yield {"labels": words()}
            if "input_ids" in fields:
                yield {"labels": fields["input_ids"].clone()}
        case "IMAGE_CLASSIFICATION" | "AUDIO_CLASSIFICATION" | "VIDEO_CLASSIFICATION":
            yield {"labels": torch.randint(0, count, (ROWS,))}
        case "SEMANTIC_SEGMENTATION":
            shape = fields["pixel_values"].shape
            yield {"labels": torch.randint(0, count, (ROWS, *shape[-2:]))}
        case "PRETRAINING" if "input_ids" in fields:
            yield {"labels": fields["input_ids"].clone()}
