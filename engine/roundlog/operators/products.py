"""Matrix products of FP32 numbers on the CPU, panel by panel: widened, multiplied, rounded and marked while they are in
the cache. What they compute and how well is said in `roundlog.operators.contraction`."""

from __future__ import annotations

import numpy as np
import torch

from roundlog.arithmetic.interval import interval_factor
from roundlog.kernels.marking import mark_product
from roundlog.kernels.scratch import scratch
from roundlog.kernels.widening import dense, widen
from roundlog.operators.marking import Marked
from roundlog.operators.terms import blocked_gamma, blocks

PANEL = 1 << 19
"""FP64 elements of one panel of the output, and of the operand that it is made of: 4 MiB each."""


def certify_product(a: torch.Tensor, b: torch.Tensor, scale: float) -> tuple[torch.Tensor, Marked]:
    """a: f32[B, M, K], b: f32[B, K, N], on the CPU, nothing empty. Returns f32[B, M, N] and what is marked in it."""
    a, b = dense(a), dense(b)
    (batches, rows, terms), columns = a.shape, b.shape[2]
    out = torch.empty((batches, rows, columns), dtype=torch.float32)
    flat = out.view(-1).numpy()
    cut = blocks(terms)
    factor, gamma = interval_factor(scale), blocked_gamma(terms)
    by_rows = rows >= columns
    # Whole batches if there are several, else panels of the larger side.
    if batches > 1:
        size = max(1, PANEL // max(rows * columns, (rows + columns) * terms))
        panels = [(first, min(first + size, batches)) for first in range(0, batches, size)]
    else:
        longer, shorter = max(rows, columns), min(rows, columns)
        # Never narrower than what a matrix kernel needs to run at full speed.
        size = max(256, PANEL // max(shorter, min(terms, cut[0][1])))
        count = -(-longer // size)
        panels = [(longer * i // count, longer * (i + 1) // count) for i in range(count)]
    row_energy, column_energy = np.zeros(batches * rows), np.zeros(batches * columns)
    found = []
    wide_a = wide_b = torch.empty(0)
    for number, (first, last) in enumerate(panels):
        in_batch, in_rows, in_columns = slice(None), slice(None), slice(None)
        if batches > 1:
            in_batch = slice(first, last)
        elif by_rows:
            in_rows = slice(first, last)
        else:
            in_columns = slice(first, last)
        # Energies are taken once: those of the operand that is widened again for every panel, with the first panel.
        of_rows = row_energy[first * rows : last * rows] if batches > 1 else row_energy[in_rows]
        of_columns = column_energy[first * columns : last * columns] if batches > 1 else column_energy[in_columns]
        again_a, again_b = batches == 1 and not by_rows and number > 0, batches == 1 and by_rows and number > 0
        for position, (start, stop) in enumerate(cut):
            if not again_a or len(cut) > 1:
                spare = np.zeros_like(of_rows) if again_a else of_rows
                wide_a = widen("a", a[in_batch, in_rows, start:stop], spare, -1)
            if not again_b or len(cut) > 1:
                spare = np.zeros_like(of_columns) if again_b else of_columns
                wide_b = widen("b", b[in_batch, start:stop, in_columns], spare, -2)
            shape = (wide_a.shape[0], wide_a.shape[1], wide_b.shape[2])
            y = scratch("y" if position == 0 else "t", *shape)
            if shape[0] == 1:
                torch.mm(wide_a[0], wide_b[0], out=y[0])
            else:
                torch.bmm(wide_a, wide_b, out=y)
            if position > 0:
                y = scratch("y", *shape).add_(y)
        norms = np.sqrt(of_rows) * gamma, np.sqrt(of_columns).reshape(shape[0], -1)
        lines = y.view(-1, shape[2]).numpy()
        if batches > 1:
            near = mark_product(lines, *norms, factor, flat, first=first * rows * columns)
        elif by_rows:
            near = mark_product(lines, *norms, factor, flat, first=first * columns)
        else:
            near = mark_product(lines, *norms, factor, flat, first=first, pitch=columns)
        found.append(near)
    return out, Marked.collect(found)
