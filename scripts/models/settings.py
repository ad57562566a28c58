"""Settings that a kind needs beside the small sizes, or instead of them."""

from __future__ import annotations

from typing import Any

_RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 16, 32],
    "depths": [1, 1, 1, 1],
    "out_features": ["stage4"],
}
_BY_RESNET: dict[str, Any] = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone_config": _RESNET}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_expand": 2}
_SERIES = {
    "prediction_length": 4,
    "context_length": 8,
    "lags_sequence": [1, 2],
    "d_model": 16,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
}
_PATCHES = {"context_length": 16, "prediction_length": 4, "patch_length": 4, "patch_stride": 4, "num_input_channels": 2}

SETTINGS: dict[str, dict[str, Any]] = {
    "autoformer": _SERIES,
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "conditional_detr": _BY_RESNET,
    "dab-detr": _BY_RESNET,
    "deformable_detr": {
        **_BY_RESNET,
        "backbone_config": {**_RESNET, "out_features": ["stage2", "stage3", "stage4"]},
        "d_model": 32,
    },
    "detr": _BY_RESNET,
    "dots1": {"first_k_dense_replace": 1, "head_dim": 8},
    "esm": {"vocab_size": 32, "pad_token_id": 1, "mask_token_id": 2},
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 32},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "granite_speech5_ctc": {"encoder_config": {"context_size": 16}},
    "granitemoehybrid": {**_MAMBA, "layer_types": ["mamba", "attention"], "num_hidden_layers": 2},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "informer": _SERIES,
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "layoutlmv3": {
        "hidden_size": 24,
        "coordinate_size": 4,
        "shape_size": 4,
        "num_attention_heads": 2,
        "input_size": 32,
    },
    "lilt": {"hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 32},
    "moonshine": {"pad_token_id": 2},
    "longcat_flash": {"qk_head_dim": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "head_dim": 8},
    "mamba2": {"num_heads": 4, "head_dim": 8, "n_groups": 1, "expand": 2, "chunk_size": 4},
    "ministral": {"head_dim": 8},
    "moonshine_streaming": {"num_key_value_heads": 2},
    "nemotron": {"head_dim": 8},
    "omdet-turbo": _BY_RESNET,
    "patchtsmixer": {**_PATCHES, "d_model": 8},
    "patchtst": {**_PATCHES, "d_model": 16},
    "qwen3_5": {},
    "reformer": {
        "is_decoder": True,
        "attn_layers": ["local", "local"],
        "axial_pos_shape": [4, 2],
        "axial_pos_embds_dim": [8, 8],
        "local_attn_chunk_length": 4,
        "hidden_size": 16,
        "attention_head_size": 8,
    },
    "table-transformer": _BY_RESNET,
    "time_series_transformer": _SERIES,
    "wav2vec2-bert": {"vocab_size": 32},
    "wav2vec2-conformer": {"vocab_size": 32},
    "zamba": {"num_hidden_layers": 3, "layer_types": ["linear_attention", "linear_attention", "hybrid"]},
}
