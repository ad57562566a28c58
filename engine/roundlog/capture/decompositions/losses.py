"""Losses that PyTorch's own decompositions compute badly, or not at all, as plain tensor arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from roundlog.capture.errors import CaptureError

_aten = torch.ops.aten


def decompositions() -> dict[Any, Any]:
    """For `make_fx`: ATen operator -> function."""
    return {
        _aten.binary_cross_entropy.default: binary_cross_entropy,
        _aten._ctc_loss.default: _ctc_loss,
        _aten._ctc_loss.Tensor: _ctc_loss,
        _aten._ctc_loss_backward.default: _ctc_backward,
        _aten._ctc_loss_backward.Tensor: _ctc_backward,
    }


def binary_cross_entropy(
    x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, reduction: int = 1
) -> torch.Tensor:
    """PyTorch cuts logarithms off at -100, that of zero too; log(2^-149) is below that already."""
    log_x = x.clamp_min(2.0**-149).log().clamp_min(-100.0)
    sure = x == 1
    log_not_x = torch.where(sure, -100.0, torch.log1p(-torch.where(sure, 0.0, x)).clamp_min(-100.0))
    loss = -(target * log_x + (1 - target) * log_not_x)
    if weight is not None:
        loss = loss * weight
    return loss.mean() if reduction == 1 else loss.sum() if reduction == 2 else loss


_NEVER = -1e30
_IMPOSSIBLE = -1e29
"""Bound below which a number comes from `_NEVER`."""

Lengths = torch.Tensor | Sequence[int]


class _Batch:
    """Labels between blanks, and how long everything is."""

    def __init__(
        self, log_probs: torch.Tensor, targets: torch.Tensor, inputs: Lengths, labels: Lengths, blank: int
    ) -> None:
        self.steps, samples, _ = log_probs.shape
        self.inputs, self.labels = (
            n.long() if isinstance(n, torch.Tensor) else torch.tensor(n, device=log_probs.device)
            for n in (inputs, labels)
        )
        targets = _padded(targets, labels, samples).long()
        blanks = torch.full((samples, 1), blank, device=log_probs.device)
        between = torch.stack([blanks.expand(targets.shape), targets], dim=-1).flatten(1)
        self.path = torch.cat([between, blanks], dim=1)
        """i64[samples, 2 labels + 1]: blank, label, blank, ..., blank."""
        self.log_probs = torch.stack([step.gather(1, self.path) for step in log_probs.unbind()])
        """f32[steps, samples, places of the path]"""
        here, before = self.path[:, 2:], self.path[:, :-2]
        # From one label to the next without a blank, if they are not the same.
        self.skips = torch.cat(
            [torch.zeros_like(self.path[:, :2], dtype=torch.bool), (here != blank) & (here != before)], 1
        )
        places = torch.arange(self.path.shape[1], device=log_probs.device)
        last = 2 * self.labels[:, None]
        self.ends = (places == last) | (places == last - 1)
        self.begins = places < 2

    def forward(self) -> list[torch.Tensor]:
        """After every step, the logarithm of the probability of all beginnings that end in a place."""
        found = [torch.where(self.begins, self.log_probs[0], _NEVER)]
        for step in range(1, self.steps):
            before = found[-1]
            skipped = torch.where(self.skips, _shifted(before, 2), _NEVER)
            moved = _log_of_sum(before, _shifted(before, 1), skipped) + self.log_probs[step]
            found.append(torch.where((step < self.inputs)[:, None], moved, before))
        return found

    def backward(self) -> list[torch.Tensor]:
        """Log-probabilities of all endings that begin in a place."""
        nothing = torch.full_like(self.log_probs[0], _NEVER)
        skips = _shifted(self.skips, -2, False)
        found: list[torch.Tensor] = []
        for step in reversed(range(self.steps)):
            after = found[-1] if found else nothing
            skipped = torch.where(skips, _shifted(after, -2), _NEVER)
            moved = _log_of_sum(after, _shifted(after, -1), skipped)
            last = torch.where(self.ends, 0.0, _NEVER)
            inner = torch.where(self.inputs.eq(step + 1)[:, None], last, moved)
            found.append(torch.where((step < self.inputs)[:, None], inner + self.log_probs[step], _NEVER))
        return found[::-1]

    def likelihood(self, last: torch.Tensor) -> torch.Tensor:
        """The logarithm of the probability of all alignments, after the last step."""
        ending = torch.where(self.ends, last, _NEVER)
        most = ending.amax(1)
        return most + (ending - most[:, None]).exp().sum(1).log()


def _padded(targets: torch.Tensor, lengths: Lengths, samples: int) -> torch.Tensor:
    if targets.ndim == 2:
        return targets
    if isinstance(lengths, torch.Tensor):
        raise CaptureError(
            "the labels of ctc_loss stand one after another: give them as a matrix, a padded row a sample"
        )
    starts = [sum(lengths[:sample]) for sample in range(samples)]
    longest = max(lengths)
    rows = [[min(start + place, len(targets) - 1) for place in range(longest)] for start in starts]
    return targets[torch.tensor(rows, device=targets.device)]


def _shifted(x: torch.Tensor, by: int, filling: float | bool = _NEVER) -> torch.Tensor:
    """Along the path, to the end or (negative) to the beginning."""
    width = x.shape[1]
    by = max(-width, min(by, width))
    missing = torch.full_like(x[:, : abs(by)], filling)
    return torch.cat([missing, x[:, : width - by]] if by > 0 else [x[:, -by:], missing], 1)


def _log_of_sum(*xs: torch.Tensor) -> torch.Tensor:
    most = xs[0]
    for x in xs[1:]:
        most = torch.maximum(most, x)
    total = (xs[0] - most).exp()
    for x in xs[1:]:
        total = total + (x - most).exp()
    return most + total.log()


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(minus the logarithm of every sample's probability, what `backward` needs). No alignment at all: infinity, which
    stops a run, or zero."""
    batch = _Batch(log_probs, targets, input_lengths, target_lengths, blank)
    found = batch.forward()
    likelihood = batch.likelihood(found[-1])
    without = 0.0 if zero_infinity else torch.inf
    return torch.where(likelihood < _IMPOSSIBLE, without, -likelihood), torch.stack(found, 1)


def _ctc_backward(
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    negative: torch.Tensor,
    log_alpha: torch.Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """Gradient of the CTC loss, as PyTorch defines it: for `log_probs` that come from a log_softmax."""
    batch = _Batch(log_probs, targets, input_lengths, target_lengths, blank)
    forward, backward = log_alpha.unbind(1), batch.backward()
    possible = ~(batch.likelihood(forward[-1]) < _IMPOSSIBLE)
    gradients = []
    for step in range(batch.steps):
        weight = (forward[step] + backward[step] - batch.log_probs[step] + negative[:, None]).exp()
        visited = torch.zeros_like(log_probs[step]).scatter_add(1, batch.path, weight)
        gradient = (log_probs[step].exp() - visited) * grad[:, None]
        gradients.append(torch.where(((step < batch.inputs) & possible)[:, None], gradient, 0.0))
    return torch.stack(gradients)
