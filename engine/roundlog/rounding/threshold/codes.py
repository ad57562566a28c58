"""rnd, log and rev: what OVT's trainer and auditor do with one FP64 value (section 5.2 and Algorithm 4 there)."""

from __future__ import annotations

import torch

from roundlog.arithmetic import neighbour
from roundlog.log.trits import DOWN, PLAIN, UP

_EXPONENT = 0x7FF0000000000000


def place(y: torch.Tensor, bits: int) -> torch.Tensor:
    """f64: the distance 2^(e + 9 - bits) of neighbouring numbers of the format around y, e = floor(log2 |y|), or -126
    if that is larger. The published prototype takes powers of ten for 2^e, which logs too little above one and too much
    below."""
    power = (y.contiguous().view(torch.int64) & _EXPONENT).view(torch.float64)
    return power.clamp_(min=2.0**-126).mul_(2.0 ** (9 - bits))


def log_codes(y: torch.Tensor, rounded: torch.Tensor, threshold: float, bits: int) -> torch.Tensor:
    """uint8, the trits of y (f64) that was rounded to `rounded` (f32, of the format): 0 rounded down, 2 rounded up, 1
    not farther from `rounded` than threshold * `place`. A y that is not finite is 1."""
    # Exact: both are multiples of y's last place, and at most half a place of the format apart.
    above = y - rounded.to(torch.float64)
    logged = (above.abs() > threshold * place(y, bits)) & y.isfinite()
    code = torch.where(above > 0, DOWN, UP).to(torch.uint8)
    return torch.where(logged, code, torch.tensor(PLAIN, dtype=torch.uint8, device=y.device))


def reverse(y: torch.Tensor, rounded: torch.Tensor, codes: torch.Tensor, bits: int) -> torch.Tensor:
    """f32: `rounded`, moved by one place where the trainer's trit says the other way. The trainer rounded down (0) and
    y, here, up: the next number below; the trainer rounded up (2) and y, here, down: the next above."""
    wide = rounded.to(torch.float64)
    moved = torch.where((codes == DOWN) & (y < wide), neighbour(rounded, -1, bits), rounded)
    return torch.where((codes == UP) & (y > wide), neighbour(rounded, 1, bits), moved)
