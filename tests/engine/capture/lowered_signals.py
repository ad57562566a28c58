"""Complex numbers, Fourier transforms, alignments and bags: what is taken apart before it is lowered."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.engine.capture.lowered_cases import group, like, modules

ANGLES = torch.arange(3.0)


def turned(x: Tensor) -> Tensor:
    """Rotary embeddings, as Llama 4 has them."""
    factors = torch.polar(torch.ones_like(ANGLES), ANGLES).to(torch.complex128 if x.dtype == torch.double else None)
    return torch.view_as_real(torch.view_as_complex(x.reshape(len(x), 3, 2)) * factors).flatten(1)


group(
    "complex numbers",
    turned=turned,
    product=lambda x: (torch.complex(x, x.cos()) * torch.complex(x.sin(), x)).imag,
    quotient=lambda x: (torch.complex(x, x.cos()) / torch.complex(x.exp(), x)).real,
    by_a_number=lambda x: ((1 + 2j) * torch.complex(x, x.cos()) - x + 0.5).imag,
    absolute=lambda x: torch.complex(x, x.cos()).abs(),
    angle=lambda x: torch.complex(x, x.cos()).angle(),
    polar=lambda x: torch.polar(x.exp(), x).real,
    conjugate=lambda x: (torch.complex(x, x.cos()).conj() ** 3).imag,
    exponential=lambda x: torch.complex(x, 2 * x).exp().imag,
    joined=lambda x: torch.cat([torch.complex(x, x), torch.complex(x, -x)], 1)[:, 1::2].T.unsqueeze(0).sum(1).real,
    chosen=lambda x: torch.where(x > 0, torch.complex(x, x.sin()), 0)[:, [0, 2, 5, 1, 3, 4]].imag,
    multiplied=lambda x: torch.einsum("bi,ci->bc", torch.complex(x, x.sin()), torch.complex(x, x.cos())).real,
)
group(
    "Fourier transforms",
    (4, 6),
    fft=lambda x: torch.fft.fft(x).imag,
    both_axes=lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real,
    fft2=lambda x: torch.fft.fft2(x, norm="ortho").real,
    inverse=lambda x: torch.fft.ifft(torch.fft.fft(x) * (1 + 2j)).imag,
    rfft=lambda x: torch.fft.rfft(x, norm="forward").imag,
    irfft=lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(like(x, 1, 2, 0, 0, 3, 0)), n=6),
    odd=lambda x: torch.fft.irfft(torch.fft.rfft(x[..., :5]).exp(), n=5),
    rfft2=lambda x: torch.fft.irfft2(torch.fft.rfft2(x, norm="ortho").abs() + 0j, s=(4, 6), norm="ortho"),
    spectrum=lambda x: torch.fft.rfft(x).abs().square(),
    short_time=lambda x: (
        torch.stft(x.flatten(1), 4, 2, window=torch.hann_window(4), return_complex=True).abs().square()
    ),
    short_time_of_one=lambda x: torch.stft(x.flatten(), 8, return_complex=True, normalized=True).imag,
    short_window=lambda x: (
        torch.stft(x.flatten(1), 5, 1, 2, torch.tensor([1.0, 3.0]), center=False, return_complex=True).real
    ),
    no_window=lambda x: (
        torch.stft(x.flatten(1), 6, 3, 3, center=False, onesided=False, return_complex=True)[:, 1:3].imag
    ),
    two_reals=lambda x: torch.stft(x.flatten(1), 4, pad_mode="constant", return_complex=False)[..., 1],
)


def aligned(x: Tensor, **options) -> Tensor:
    """CTC over 6 steps of 5 labels, for samples of different lengths."""
    labels = torch.tensor([[1, 2, 2], [3, 1, 4], [4, 4, 0], [2, 0, 0]])
    steps, lengths = torch.tensor([6, 6, 5, 4]), torch.tensor([3, 3, 2, 1])
    return F.ctc_loss(x.log_softmax(-1).transpose(0, 1), labels, steps, lengths, **options)


def aligned_in_line(x: Tensor) -> Tensor:
    """With the labels of all samples one after another."""
    labels = torch.tensor([1, 2, 2, 3, 1, 4, 4, 4, 2])
    return F.ctc_loss(x.log_softmax(-1).transpose(0, 1), labels, (6, 6, 5, 4), (3, 3, 2, 1), reduction="sum")


def too_short(x: Tensor) -> Tensor:
    """Two samples cannot be aligned."""
    labels = torch.tensor([[1, 1, 1], [3, 1, 4], [4, 4, 4], [2, 0, 0]])
    steps, lengths = torch.tensor([3, 6, 4, 6]), torch.tensor([3, 3, 3, 1])
    log_probs = x.log_softmax(-1).transpose(0, 1)
    return F.ctc_loss(log_probs, labels, steps, lengths, reduction="none", zero_infinity=True)


group(
    "alignments",
    (6, 5),
    mean=aligned,
    each=lambda x: aligned(x, reduction="none", blank=0),
    in_line=aligned_in_line,
    too_short=too_short,
)

WORDS = torch.tensor([[0, 2, 1], [3, 3, 0], [4, 1, 2], [0, 0, 3]])
OFFSETS = torch.tensor([0, 2, 2, 9])


class Bag(nn.Module):
    """An EmbeddingBag over fixed words; with `offsets`, in bags of different sizes, one of them empty."""

    def __init__(self, *, offsets: bool = False, weighted: bool = False, **options) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(5, 6, **options)
        self.offsets, self.weighted = offsets, weighted

    def forward(self, x: Tensor) -> Tensor:
        weights = x[:, :3] if self.weighted else None
        if not self.offsets:
            return self.bag(WORDS, per_sample_weights=weights) * x
        flat = None if weights is None else weights.flatten()
        return self.bag(WORDS.flatten(), OFFSETS, per_sample_weights=flat) * x


modules(
    "bags of embeddings",
    (6,),
    summed=lambda: Bag(mode="sum"),
    averaged=Bag,
    greatest=lambda: Bag(mode="max"),
    weighted=lambda: Bag(mode="sum", weighted=True),
    without_padding=lambda: Bag(mode="mean", padding_idx=0),
    by_offsets=lambda: Bag(offsets=True, mode="mean"),
    greatest_by_offsets=lambda: Bag(offsets=True, mode="max"),
    weighted_by_offsets=lambda: Bag(offsets=True, mode="sum", weighted=True),
)
modules(
    "spectral norm",
    (6,),
    parametrized=lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)),
)
