"""Cases of lines, images and volumes: convolutions, pooling, interpolation."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from tests.engine.capture.lowered_cases import group, modules, positive

modules("convolutions", (3, 8), one=lambda: nn.Conv1d(3, 4, 3, padding="same"))
modules("convolutions", (3, 8), one_transposed=lambda: nn.ConvTranspose1d(3, 4, 3, stride=2, output_padding=1))
modules(
    "convolutions",
    (4, 5, 6),
    two_transposed=lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, padding=1),
    depthwise=lambda: nn.Conv2d(4, 8, 3, groups=4, stride=2, dilation=2, padding=2),
    reflect=lambda: nn.Conv2d(4, 2, 3, padding=1, padding_mode="reflect"),
    circular=lambda: nn.Conv2d(4, 2, 3, padding=1, padding_mode="circular"),
    replicate=lambda: nn.Conv2d(4, 2, 3, padding=1, padding_mode="replicate"),
)
modules(
    "convolutions",
    (2, 4, 5, 6),
    three=lambda: nn.Conv3d(2, 4, (3, 2, 3), stride=(2, 1, 2), padding=(1, 0, 1), dilation=(1, 2, 1), groups=2),
    three_transposed=lambda: nn.ConvTranspose3d(2, 4, 3, stride=2, padding=1, output_padding=1),
)

group(
    "pooling",
    (3, 7, 6),
    largest=lambda x: F.max_pool2d(x, 3, 2, padding=1),
    ceil=lambda x: F.max_pool2d(x, (2, 3), 2, ceil_mode=True),
    ceil_padded=lambda x: F.max_pool2d(x, 3, 2, padding=1, ceil_mode=True),
    ceil_dilated=lambda x: F.max_pool2d(x, 2, 3, dilation=2, ceil_mode=True),
    places=lambda x: F.max_pool2d(x, 2, 2, ceil_mode=True, return_indices=True)[1] * x.mean(),
    mean=lambda x: F.avg_pool2d(x, 3, 2, padding=1),
    mean_ceil=lambda x: F.avg_pool2d(x, (2, 4), 3, ceil_mode=True),
    mean_unpadded=lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    mean_both=lambda x: F.avg_pool2d(x, (2, 3), 2, 1, ceil_mode=True, count_include_pad=False),
    mean_padded=lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    divisor=lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    lp=lambda x: F.lp_pool2d(positive(x), 2, 2),
    adaptive=lambda x: F.adaptive_avg_pool2d(x, 1),
    adaptive_uneven=lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
    adaptive_even=lambda x: F.adaptive_avg_pool2d(x, (7, 2)),
    adaptive_largest=lambda x: F.adaptive_max_pool2d(x, (1, 3)),
    area=lambda x: F.interpolate(x, (4, 4), mode="area"),
)
group(
    "pooling",
    (2, 8),
    largest_1=lambda x: F.max_pool1d(x, 3, ceil_mode=True),
    mean_1=lambda x: F.avg_pool1d(x, 3, 2, 1, True, False),
    adaptive_1=lambda x: F.adaptive_avg_pool1d(x, 3),
)
group(
    "volumes",
    (2, 5, 4, 6),
    largest=lambda x: x.unfold(2, 3, 2).unfold(3, 2, 2).unfold(4, 2, 1).amax((-3, -2, -1)),
    mean=lambda x: x.unfold(2, 3, 2).unfold(3, 2, 2).unfold(4, 2, 1).mean((-3, -2, -1)),
    adaptive=lambda x: F.adaptive_avg_pool3d(x, 2),
    nearest=lambda x: F.interpolate(x, (7, 4, 3)),
    trilinear=lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
)

group(
    "interpolation",
    (2, 5, 4),
    **{
        mode: lambda x, mode=mode: F.interpolate(x, size=(7, 3), mode=mode)
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")
    },
    twice=lambda x: F.interpolate(x, scale_factor=2),
    aligned=lambda x: F.interpolate(x, scale_factor=(1.7, 2.2), mode="bilinear", align_corners=True),
    smoothed=lambda x: F.interpolate(x, size=(3, 3), mode="bilinear", antialias=True),
    linear=lambda x: F.interpolate(x[:, 0], scale_factor=2.5, mode="linear"),
    nearest_1=lambda x: F.interpolate(x[:, 1], 9),
    kept_scale=lambda x: F.interpolate(x, scale_factor=1.3, mode="bicubic", recompute_scale_factor=False),
    border=lambda x: F.pad(x, (1, 2, 0, 3), mode="replicate"),
    mirror=lambda x: F.pad(x, (1, 2, 0, 3), mode="reflect"),
)
