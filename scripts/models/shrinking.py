"""Small configurations: the defaults of a config class, with sizes replaced by name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

WORDS = 32
"""Size of every vocabulary."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A set of sizes. A kind gets the first with which it can be built and run."""

    width: int
    heads: int
    layers: int
    image: int = 32
    patch: int = 8


SCALES = (
    Scale(16, 2, 2),
    Scale(32, 4, 2),
    Scale(32, 2, 4),
    Scale(64, 4, 4),
    Scale(64, 8, 2, 64, 16),
    Scale(128, 4, 4, 64, 16),
)


def _rules(scale: Scale) -> tuple[tuple[str, int], ...]:
    """(pattern of a field's whole name, its value), the first that fits counts."""
    return (
        (r"(.*_)?vocab_size(_.*)?|n_vocab|num_text_tokens|num_semantic_tokens", WORDS),
        (r"codebook_size|num_embeddings", 64),
        (r"(.*_)?hash_bucket.*|num_hash_buckets", WORDS),
        (
            r"max_source_positions|max_target_positions|(.*_)?max_position_embeddings|n_positions|n_ctx|max_seq_len|max_2d_position_embeddings"
            r"|max_sequence_length|max_seq_length|context_window|seq_length|max_position|original_max_position_embeddings",
            64,
        ),
        (
            r"(.*_)?(layers|num_layers|n_layers|n_layer|depth|num_hidden_layers|num_blocks|num_resnet_blocks)|depth_.*|num_.*_layers",
            scale.layers,
        ),
        (r"(.*_)?(num_key_value_heads|num_kv_heads|n_kv_heads|num_key_value_groups)", 1),
        (r"(.*_)?(num_heads|num_attention_heads|n_heads|n_head|attention_heads|heads)", scale.heads),
        (
            r"(.*_)?(head_dim|d_kv|head_size|qk_nope_head_dim|qk_rope_head_dim|v_head_dim|d_head|attention_head_dim|attention_head_size)|attention_key_size|attention_value_size|attention_qk_channels",
            scale.width // scale.heads,
        ),
        (r"(.*_)?(lora_rank|low_rank_dim|state_size|d_state|ssm_state_size|rank)", 8),
        (r"rotary_dim", scale.width // scale.heads // 2),
        (
            r"(.*_)?(intermediate_size|ffn_dim|d_ff|n_inner|feedforward_dim|ffn_hidden_size|mlp_dim|inner_dim|ffn_dim_.*|dim_feedforward|feed_forward_size|dff)",
            2 * scale.width,
        ),
        (
            r"(.*_)?(hidden_size|d_model|n_embd|embed_dim|embedding_size|emb_dim|hidden_dim|dim|projection_dim|embedding_dim|width|hidden_channels|embed_size|embedding_hidden_size|inner_size|d_embed|d_inner|d_latents|projection_size|output_dim|channels)|(.*_)?hidden_size_.*|lru_width|attention_hidden_size|conv_dim|planes",
            scale.width,
        ),
        (r"(.*_)?(image_size|img_size|crop_size|pretrain_img_size|window_image_size|input_size)", scale.image),
        (r"(.*_)?patch_size|patch_embed_size", scale.patch),
        (r"(num_|n_)?(routed_|local_)?experts|num_.*experts|n_routed_experts|moe_num_experts|n_group|topk_group", 4),
        (r"num_experts_per_tok|moe_topk|moe_k|top_k_experts|num_selected_experts", 2),
        (r"num_queries|num_latents|num_query_tokens|num_learnable_queries|resampler_n_latents|num_object_queries", 8),
        (r"num_frames|frames_per_clip", 4),
        (r"num_mel_bins|n_mels|feature_size|input_feat_per_channel", 16),
        (
            r"window_size|sliding_window|attention_window|local_attention|local_window_size|window_length|chunk_size|block_size|chunk_length",
            4,
        ),
        (r"num_labels", 4),
    )


def _lists(name: str, value: list[Any], scale: Scale) -> list[Any] | None:
    """A list of sizes, one a stage."""
    count = len(value)
    if re.fullmatch(
        r"(.*_)?(depths|layers|num_blocks|num_layers|stage_repeats|num_conv_layers|encoder_layers|decoder_layers|block_sizes|stage_numb_of_layers)",
        name,
    ):
        return [1] * count
    if re.fullmatch(r"(.*_)?(num_heads|num_attention_heads|heads)", name):
        return [scale.heads] * count
    if re.fullmatch(
        r"(.*_)?(hidden_sizes|embed_dims|embed_dim|channels|dims|widths|conv_dim|tdnn_dim|neck_hidden_sizes|hidden_dim|decoder_hidden_sizes|in_channels|feature_size)",
        name,
    ):
        return [scale.width] * count if len(set(value)) == 1 else [scale.width * (1 + (v > value[0])) for v in value]
    if re.fullmatch(r"(.*_)?(image_size|img_size)", name):
        return [scale.image] * count
    return None


def _settings(cls: type[PreTrainedConfig]) -> dict[str, Any]:
    """The default arguments of a config class: its own defaults, without those of every config."""
    common = set(inspect.signature(PreTrainedConfig).parameters)
    made = cls()
    fields = inspect.signature(cls.__init__).parameters
    names = [*getattr(cls, "__annotations__", {}), *fields]
    for base in cls.__mro__:
        if base is PreTrainedConfig:
            break
        names += getattr(base, "__annotations__", {})
    # Some settings differ from layer to layer, and have no one value to be asked for.
    given = {
        name: made.__dict__.get(name) for name in dict.fromkeys(names) if name not in common and name in made.__dict__
    }
    return {name: value for name, value in given.items() if not name.startswith("_")}


def shrunken(cls: type[PreTrainedConfig], scale: Scale, more: Mapping[str, Any] | None = None) -> PreTrainedConfig:
    """A small config of a class. more: settings that are taken as they are; of a nested config, as a mapping."""
    given = dict(more or {})
    changes: dict[str, Any] = {}
    defaults = _settings(cls)
    nested = {name: kind for name, kind in getattr(cls, "sub_configs", {}).items()}
    rules = [(re.compile(pattern), value) for pattern, value in _rules(scale)]
    for name, value in defaults.items():
        if isinstance(value, PreTrainedConfig) or name in nested:
            if isinstance(value, PreTrainedConfig) and "model_type" not in given.get(name, {}):
                changes[name] = shrunken(type(value), scale, given.pop(name, None))
        elif isinstance(value, bool) or name in given:
            continue
        elif isinstance(value, int):
            for pattern, small in rules:
                if pattern.fullmatch(name):
                    changes[name] = min(small, value) if value > 0 else value
                    break
        elif isinstance(value, (list, tuple)) and value and all(type(item) is int for item in value):
            smaller = _lists(name, list(value), scale)
            if smaller is not None:
                changes[name] = type(value)(smaller)
        elif name == "layer_types" and isinstance(value, list):
            kinds = list(dict.fromkeys(value))
            changes[name] = [kinds[number % len(kinds)] for number in range(scale.layers)]
    changes |= _key_value_heads(defaults, changes)
    changes |= dict(_token_ids(defaults))
    changes |= _rotations(cls, defaults, {**changes, **given}, scale)
    switches = {
        name: 0.0
        for name, value in defaults.items()
        if isinstance(value, float) and "layerdrop" in name.replace("_", "")
    }
    switches |= {name: 0.0 for name in ("mask_time_prob", "mask_feature_prob") if name in defaults}
    if "apply_spec_augment" in defaults:
        switches["apply_spec_augment"] = False
    if "use_cache" in defaults:
        switches["use_cache"] = False
    for name, settings in given.items():
        if isinstance(settings, Mapping) and "model_type" in settings:
            given[name] = config_class(settings["model_type"])(
                **{k: v for k, v in settings.items() if k != "model_type"}
            )
        elif isinstance(settings, Mapping) and name in nested:
            given[name] = shrunken(nested[name], scale, settings)
    return cls(**{**changes, **switches, **given})


def _key_value_heads(defaults: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, int]:
    """Numbers of heads of keys, equal to those of queries where the default has that."""
    found = {}
    for name in ("num_key_value_heads", "num_kv_heads", "n_kv_heads"):
        for whole in ("num_attention_heads", "n_head", "n_heads", "num_heads"):
            if name in changes and whole in changes and isinstance(changes[whole], int):
                found[name] = changes[whole] if defaults[name] == defaults[whole] else 1
    return found


def _rotations(
    cls: type[PreTrainedConfig], defaults: Mapping[str, Any], changes: Mapping[str, Any], scale: Scale
) -> dict[str, Any]:
    """Rotary embeddings of time, height and width: the three share out half of a head."""
    found = {}
    has_three = "mrope_section" in (getattr(cls, "ignore_keys_at_rope_validation", None) or ())
    for name in ("rope_parameters", "rope_scaling"):
        value = defaults.get(name)
        if isinstance(value, Mapping) and (has_three or "mrope_section" in value):
            size = changes.get("head_dim") or scale.width // scale.heads
            half = int(size * value.get("partial_rotary_factor", 1)) // 2
            parts = [half - 2 * (half // 3), half // 3, half // 3]
            found[name] = {**value, "mrope_section": parts}
    return found


def _token_ids(defaults: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Special tokens, each another one of the last words of the vocabulary."""
    free = WORDS - 1
    for name, value in sorted(defaults.items()):
        if type(value) is int and re.search(r"token_(id|index)$|_token$", name) and value >= 8:
            yield name, free
            free -= 1


def config_class(name: str) -> type[PreTrainedConfig]:
    return CONFIG_MAPPING[name]
