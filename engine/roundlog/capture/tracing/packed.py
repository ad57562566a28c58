"""Recurrent layers over packed sequences, written anew by masks: which words are packed depends on the lengths.

A packed sequence holds the words that count, step by step, as `x[mask]` does. The layers run over all steps, and keep
the state of a sequence that has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from roundlog.arithmetic import is_short
from roundlog.capture.errors import CaptureError, place_of_call

_MASK = "roundlog_mask"
"""Attribute of a packed sequence's `batch_sizes`: bool[steps, sequences], which words count."""

_pack_of_torch = torch._VF._pack_padded_sequence
_pad_of_torch = torch._VF._pad_packed_sequence


def pack(x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(words that count, their number at each step) of padded sequences, longest first."""
    if not isinstance(x, FakeTensor) and not isinstance(lengths, FakeTensor):
        return _pack_of_torch(x, lengths, batch_first)
    x = x.transpose(0, 1) if batch_first else x
    steps = torch.arange(x.shape[0])
    mask = steps[:, None] < lengths
    sizes = mask.sum(1)[steps < lengths.max()]
    setattr(sizes, _MASK, mask)
    return x[mask], sizes


def pad(
    data: torch.Tensor, sizes: torch.Tensor, batch_first: bool, padding: float, total: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """(padded sequences, their lengths) of packed ones. total: number of steps."""
    if not isinstance(data, FakeTensor) and not isinstance(sizes, FakeTensor):
        return _pad_of_torch(data, sizes, batch_first, padding, total)
    mask = _mask_of(sizes)
    whole = _spread(data, mask, padding)
    lengths = mask.sum(0)
    if type(total) is not int:
        whole = whole[torch.arange(len(mask)) < lengths.max()]
    elif total > len(mask):
        whole = torch.cat([whole, whole.new_full((total - len(mask), *whole.shape[1:]), padding)])
    else:
        whole = whole[:total]
    return whole.transpose(0, 1) if batch_first else whole, lengths


def _mask_of(sizes: torch.Tensor) -> torch.Tensor:
    mask = getattr(sizes, _MASK, None)
    if not isinstance(mask, torch.Tensor):
        raise CaptureError(
            f"a packed sequence has a shape that depends on values{place_of_call()}, and is not made by "
            "pack_padded_sequence in this step: pad the sequences and mask what is padding"
        )
    return mask


def _spread(data: torch.Tensor, mask: torch.Tensor, padding: float = 0.0) -> torch.Tensor:
    return data.new_full((*mask.shape, *data.shape[1:]), padding).index_put((mask,), data)


def recurrent(of_torch: Callable[..., Any]) -> Callable[..., Any]:
    """The `forward` of a class of recurrent layers, which follows packed sequences. of_torch: PyTorch's own."""

    def forward(layer: nn.RNNBase, x: Any, hx: Any = None) -> Any:
        if isinstance(layer, nn.LSTM):
            _refuse_short(x)
        if not isinstance(x, PackedSequence) or not isinstance(x.data, FakeTensor):
            return of_torch(layer, x, hx)
        if layer.proj_size:
            raise CaptureError(f"an LSTM with proj_size takes a packed sequence{place_of_call()}: leave proj_size out")
        return _run(layer, x, hx)

    return forward


def _refuse_short(x: Any) -> None:
    """Raises CaptureError for an LSTM on short numbers: there, PyTorch has one kernel for the whole of it, which it
    calls on some processors only, and which rounds where no trace can see it."""
    dtype = (x.data if isinstance(x, PackedSequence) else x).dtype
    if is_short(dtype) or torch.is_autocast_enabled("cpu"):
        raise CaptureError(
            f"an LSTM computes in bfloat16{place_of_call()}, where PyTorch has one kernel for all of it: call "
            "nn.LSTMCell step by step, or keep its weights in float32 and call it with .float() before, under "
            'torch.autocast("cpu", enabled=False) and torch.backends.mkldnn.flags(enabled=False)'
        )


def _run(layer: nn.RNNBase, packed: PackedSequence, hx: Any) -> tuple[PackedSequence, Any]:
    mask = _mask_of(packed.batch_sizes)
    directions = 2 if layer.bidirectional else 1
    has_cells = isinstance(layer, nn.LSTM)
    if hx is None:
        zeros = packed.data.new_zeros(layer.num_layers * directions, mask.shape[1], layer.hidden_size)
        given = [zeros, zeros] if has_cells else [zeros]
    else:
        given = list(hx) if has_cells else [hx]
        if packed.sorted_indices is not None:
            given = [part.index_select(1, packed.sorted_indices) for part in given]
    data, last = packed.data, []
    for number in range(layer.num_layers):
        x, sides = _spread(data, mask), []
        for side in range(directions):
            place = number * directions + side
            first = tuple(part[place] for part in given)
            out, state = _one_way(layer, x, mask, first, layer.all_weights[place], backwards=side == 1)
            sides.append(out)
            last.append(state)
        data = torch.cat(sides, dim=2)[mask] if directions == 2 else sides[0][mask]
        if layer.dropout and number + 1 < layer.num_layers:
            data = F.dropout(data, layer.dropout, layer.training)
    states = [torch.stack(parts) for parts in zip(*last, strict=True)]
    if packed.unsorted_indices is not None:
        states = [part.index_select(1, packed.unsorted_indices) for part in states]
    result = PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
    return result, tuple(states) if has_cells else states[0]


def _one_way(
    layer: nn.RNNBase,
    x: torch.Tensor,
    mask: torch.Tensor,
    state: tuple[torch.Tensor, ...],
    weights: Any,
    *,
    backwards: bool,
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """(outputs, the last state) of one direction: each step is taken by the sequences that have it."""
    cell: Any = {
        "GRU": torch.gru_cell,
        "LSTM": torch.lstm_cell,
        "RNN_TANH": torch.rnn_tanh_cell,
        "RNN_RELU": torch.rnn_relu_cell,
    }[layer.mode]
    outputs = []
    steps = range(len(x))
    for step in reversed(steps) if backwards else steps:
        found = cell(x[step], state if layer.mode == "LSTM" else state[0], *weights)
        after = found if layer.mode == "LSTM" else (found,)
        alive = mask[step][:, None]
        state = tuple(torch.where(alive, new, old) for new, old in zip(after, state, strict=True))
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backwards else outputs), state
