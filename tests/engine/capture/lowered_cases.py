"""Activations and products that users of PyTorch reach for, in groups that are captured together; single functions are
those of PyTorch's own table (test_opinfo).

A case is the shape of one sample and a function of a batch of them, in whatever precision the batch has; or a module,
whose own parameters are trained too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH = 4


@dataclass(frozen=True)
class Case:
    shape: tuple[int, ...]
    function: Callable[[Tensor], Tensor] | None = None
    module: Callable[[], nn.Module] | None = None
    several: bool = False
    """Whether the module takes the batch more than once (attention)."""


GROUPS: dict[str, dict[str, Case]] = {}


def group(name: str, shape: tuple[int, ...] = (6,), **functions: Callable[[Tensor], Tensor]) -> None:
    GROUPS.setdefault(name, {}).update({key: Case(shape, function) for key, function in functions.items()})


def modules(name: str, shape: tuple[int, ...], *, several: bool = False, **makers: Callable[[], nn.Module]) -> None:
    GROUPS.setdefault(name, {}).update(
        {key: Case(shape, module=maker, several=several) for key, maker in makers.items()}
    )


group(
    "activations",
    silu=F.silu,
    elu=F.elu,
    celu=lambda x: F.celu(x, 0.7),
    selu=F.selu,
    leaky_relu=F.leaky_relu,
    relu6=F.relu6,
    hardswish=F.hardswish,
    hardsigmoid=F.hardsigmoid,
    hardtanh=lambda x: F.hardtanh(x, -0.3, 0.4),
    mish=F.mish,
    softplus=F.softplus,
    softplus_steep=lambda x: F.softplus(x, beta=3, threshold=2),
    glu=F.glu,
    logsigmoid=F.logsigmoid,
    softsign=F.softsign,
    tanhshrink=F.tanhshrink,
    softshrink=F.softshrink,
    hardshrink=F.hardshrink,
    softmin=lambda x: F.softmin(x, -1),
    gelu=F.gelu,
    gelu_by_tanh=lambda x: F.gelu(x, approximate="tanh"),
    softmax=lambda x: F.softmax(x, 1),
    far_out=lambda x: F.elu(200 * x) + F.softplus(200 * x) + F.mish(200 * x) + F.silu(200 * x),
)
modules("activations", (6,), prelu=nn.PReLU, prelu_by_channel=lambda: nn.PReLU(6))

group(
    "products",
    einsum=lambda x: torch.einsum("ij,kj->ik", x, x),
    outer=lambda x: torch.outer(x[0], x[1]),
    kron=lambda x: torch.kron(x, x),
    baddbmm=lambda x: torch.baddbmm(x[None], x[None], (x.reshape(6, 4) @ x)[None], alpha=2),
    four_axes=lambda x: x.reshape(2, 2, 3, 2) @ x.reshape(2, 2, 2, 3),
    mv=lambda x: x @ x[0],
    dot=lambda x: x[0] @ x[1],
    addmv=lambda x: torch.addmv(x[:, 0], x, x[0]),
    tensordot=lambda x: torch.tensordot(x, x, ([1], [1])),
    bilinear=lambda x: torch.einsum("ni,oij,nj->no", x, x.new_ones(2, 6, 6), x),
    lower_system=lambda x: torch.linalg.solve_triangular(
        x[:, :4] + 3 * torch.eye(4, dtype=x.dtype), x[None].expand(2, 4, 6) * 2, upper=False
    ),
    upper_system=lambda x: torch.linalg.solve_triangular(x[:, :4].expand(3, 4, 4), x, upper=True, unitriangular=True),
    system_from_the_right=lambda x: torch.linalg.solve_triangular(
        x[:, :4], x.t(), upper=True, left=False, unitriangular=True
    ),
    sdpa=lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
    sdpa_hidden=lambda x: F.scaled_dot_product_attention(
        x, x, x, attn_mask=torch.tensor([False, True, True, False])[:, None]
    ),
)
