"""Everything that users of PyTorch reach for, in groups that are captured together.

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


def like(x: Tensor, *items: float) -> Tensor:
    """A constant in the precision of x."""
    return torch.tensor(items, dtype=x.dtype)


def positive(x: Tensor) -> Tensor:
    return x.abs() + 0.1


PLACES = torch.tensor([0, 2, 1, 2])
"""A tensor that belongs to no module: it is found by the functions, and becomes a constant."""

TARGETS = torch.tensor([[0, 2, 1, 0, 3, 1], [1, 2, 1, 3, 3, 0], [0, 0, 1, 0, 2, 1], [3, 1, 1, 0, 1, 1]])

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
    "functions",
    sin=torch.sin,
    cos=lambda x: torch.cos(3 * x),
    erf=torch.erf,
    log2=lambda x: positive(x).log2(),
    log10=lambda x: positive(x).log10(),
    rsqrt=lambda x: positive(x).rsqrt(),
    sinc=torch.sinc,
    square=torch.square,
    reciprocal=lambda x: positive(x) ** -1,
    power_3=lambda x: x**3,
    power_2_5=lambda x: positive(x) ** 2.5,
    power_0_3=lambda x: positive(x) ** 0.3,
    power_negative=lambda x: positive(x) ** -1.7,
    power_of_2=lambda x: 2**x,
    power_0=lambda x: x**0 + x,
    power_tensor=lambda x: positive(x) ** x,
    log1p=lambda x: positive(x).log1p(),
    expm1=torch.expm1,
    round=lambda x: (5 * x).round() * x,
    ceil=lambda x: x.ceil() * x,
    trunc=lambda x: (3 * x).trunc() * x,
    frac=lambda x: (3 * x).frac(),
    sign=lambda x: x.sign() * x,
    clamp=lambda x: x.clamp(-0.5, 0.5),
    clamp_tensor=lambda x: torch.clamp(x, x.detach() - 0.1, x.detach() * 2),
    xlogy=lambda x: torch.xlogy(x, positive(x)),
    lerp=lambda x: torch.lerp(x, x * 2, x),
    addcdiv=lambda x: torch.addcdiv(x, x, positive(x), value=2),
    nan_to_num=torch.nan_to_num,
    mask_inf=lambda x: x.masked_fill(x.isinf(), 0),
    heaviside=lambda x: x * (x > 0),
    xor=lambda x: x * ((x > 0) != (x > 1)),
    where_scalar=lambda x: torch.where(x > 0, x, 0.25),
)


def whole(x: Tensor) -> Tensor:
    """Integers that depend on the batch, of both signs."""
    return (7 * x.detach()).long()


group(
    "remainders",
    trunc=lambda x: x * torch.div(5 * x, -0.7, rounding_mode="trunc"),
    integers=lambda x: x * (whole(x) % 4),
    integers_floor=lambda x: x * (whole(x) // 3),
    integers_by_a_tensor=lambda x: x * (whole(x) % torch.tensor(5)),
    long=lambda x: x * (3 * x).long(),
    int=lambda x: x * (3 * x).int(),
    index=lambda x: x.gather(1, (x.detach().sigmoid() * 6).long()),
    written=lambda x: x * torch.zeros(x.shape, dtype=torch.int64).copy_(9 * x.detach()),
)

group(
    "reductions",
    cumsum=lambda x: x.cumsum(1),
    cumsum_of_integers=lambda x: x * PLACES.cumsum(0)[:, None],
    cumprod=lambda x: x.cumprod(1),
    prod=lambda x: x.prod(1),
    prod_of_all=lambda x: x.prod(),
    var=lambda x: x.var(1),
    std=lambda x: x.std(1, unbiased=False),
    logsumexp=lambda x: x.logsumexp(1),
    maximum=lambda x: x.max(),
    minimum=lambda x: x.min(),
    max_along=lambda x: x.max(1)[0],
    min_along=lambda x: x.min(0)[0],
    amax=lambda x: x.amax(1),
    aminmax=lambda x: x.aminmax(dim=1)[0],
    argmin=lambda x: x * x.argmin(1)[:, None],
    norm=torch.linalg.vector_norm,
    norm_1=lambda x: x.norm(1),
    norm_inf=lambda x: x.norm(float("inf")),
    norm_3=lambda x: x.norm(3, dim=1),
    any=lambda x: x * (x > 0).any(),
    count=lambda x: x * (x > 0).sum(),
    normalize=F.normalize,
    cosine=lambda x: F.cosine_similarity(x, x.roll(1, 0)),
    distance=lambda x: F.pairwise_distance(x, x.roll(1, 0)),
    distance_of_all=lambda x: torch.dist(x, x.roll(1, 0).detach(), 3),
    distances=lambda x: x * torch.cdist(x.detach(), x.detach()[:1] * 2 + 1),
    distances_of_batches=lambda x: (
        x * torch.cdist(x.detach().reshape(2, 2, 6), x.detach()[None, :2], p=1).reshape(4, 2)[:, :1]
    ),
    topk=lambda x: x.topk(3)[0],
    topk_least=lambda x: x.topk(2, dim=0, largest=False)[0],
    sort=lambda x: x.sort(descending=True)[0],
    argsort=lambda x: x * x.argsort(),
    histogram=lambda x: x * torch.histc(x.detach(), bins=6, min=-1, max=1.4),
)

group(
    "losses",
    smoothing=lambda x: F.cross_entropy(x, PLACES, label_smoothing=0.1),
    weights=lambda x: F.cross_entropy(x, PLACES, weight=like(x, 1, 2, 3, 4, 5, 6)),
    ignored=lambda x: F.cross_entropy(x, PLACES, ignore_index=2, reduction="sum"),
    probabilities=lambda x: F.cross_entropy(x, torch.softmax(2 * x.detach(), 1)),
    nll=lambda x: F.nll_loss(F.log_softmax(x, 1), PLACES),
    each=lambda x: F.cross_entropy(x, PLACES, reduction="none"),
    mse=lambda x: F.mse_loss(x, x.detach() * 2),
    l1=lambda x: F.l1_loss(x, x.detach() * 2),
    smooth_l1=lambda x: F.smooth_l1_loss(x, x.detach() * 3),
    huber=lambda x: F.huber_loss(x, x.detach() * 3, delta=0.4),
    bce=lambda x: F.binary_cross_entropy(torch.sigmoid(x), (x.detach() > 0).to(x.dtype)),
    bce_certain=lambda x: F.binary_cross_entropy((x > 0).to(x.dtype) + 0 * x, (x.detach() > 0.5).to(x.dtype)),
    bce_logits=lambda x: F.binary_cross_entropy_with_logits(x, (x.detach() > 0).to(x.dtype), pos_weight=x.new_ones(6)),
    kl=lambda x: F.kl_div(F.log_softmax(x, 1), (x.detach() > 0) * 0.2, reduction="batchmean"),
    kl_of_logs=lambda x: F.kl_div(
        F.log_softmax(x, 1), F.log_softmax(2 * x.detach(), 1), log_target=True, reduction="sum"
    ),
    poisson=lambda x: F.poisson_nll_loss(x, x.detach().abs()),
    ranking=lambda x: F.margin_ranking_loss(x, x.detach() * 2, x.new_ones(BATCH, 6)),
    triplet=lambda x: F.triplet_margin_loss(x, x.roll(1, 0), x.roll(2, 0)),
    hinge=lambda x: F.hinge_embedding_loss(x, x.new_ones(BATCH, 6)),
    cosine_embedding=lambda x: F.cosine_embedding_loss(x, x.roll(1, 0), x.new_ones(BATCH)),
    multilabel=lambda x: F.multilabel_soft_margin_loss(x, (x.detach() > 0).to(x.dtype)),
)


def write_pieces(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[:, ::2] = x[:, ::2]
    y[1, 2] = 5.0
    y[x > 1] = 0.5
    y[PLACES[:3]] += 0.25
    return y * x


group(
    "indexing",
    rows=lambda x: x[PLACES],
    pairs=lambda x: x[PLACES, PLACES],
    columns=lambda x: x[:, PLACES],
    negative=lambda x: x[PLACES - 3],
    apart=lambda x: x.reshape(2, 2, 3, 2)[PLACES % 2, :, PLACES % 3],
    apart_kept=lambda x: x.reshape(2, 2, 3, 2)[:, PLACES % 2, :, PLACES % 2],
    select=lambda x: x.index_select(1, PLACES),
    gather=lambda x: x.gather(1, PLACES[:, None]),
    write=write_pieces,
    fill=lambda x: x.index_fill(1, PLACES, 0.5),
    fill_turned=lambda x: x.t().index_fill(0, PLACES, 0.5).t(),
    index_add=lambda x: x.new_zeros(3, 6).index_add(0, PLACES, x),
    index_copy=lambda x: x.new_zeros(4, 6).index_copy(0, torch.tensor([2, 0, 3, 1]), x),
    scatter=lambda x: torch.zeros_like(x).scatter(1, PLACES[:, None], x[:, :1]),
    scatter_add=lambda x: x.new_zeros(4, 9).scatter_add(1, PLACES[:, None].expand(4, 6), x),
    scatter_value=lambda x: x.scatter(1, PLACES[:, None].expand(4, 3) + torch.tensor([0, 1, 1]), 0.5),
    scatter_sorted=lambda x: torch.zeros_like(x).scatter(1, x.topk(3)[1], x[:, :3]),
    reduce_sum=lambda x: x.scatter_reduce(0, TARGETS, 2 * x, "sum"),
    reduce_mean=lambda x: x.scatter_reduce(0, TARGETS, 2 * x, "mean", include_self=False),
    reduce_largest=lambda x: x.scatter_reduce(0, TARGETS, 2 * x, "amax"),
    reduce_least=lambda x: x.scatter_reduce(0, TARGETS, 2 * x, "amin", include_self=False),
    reduce_in_place=lambda x: x.clone().scatter_reduce_(1, TARGETS, 2 * x, "amax"),
    masked=lambda x: x.masked_fill(torch.tensor([True, False, True, True, False, False]), 1.0),
    windows=lambda x: x.unfold(1, 3, 2),
    diagonal=lambda x: x.diagonal(1),
    diagonal_matrix=lambda x: torch.diag(x[:, 0]),
    diagonals=torch.diag_embed,
    trace=lambda x: x[:4, :4].trace(),
    triangle=lambda x: x.tril(1) + x.triu(2),
    roll=lambda x: x.roll((1, 2), (0, 1)),
    roll_flat=lambda x: x.roll(3),
    flip=lambda x: x.flip(0, 1),
    split=lambda x: torch.cat(x.split(4, 1)[::-1], 1),
    chunk=lambda x: x.chunk(3, 1)[1] * x.unbind(1)[2][:, None],
    repeat=lambda x: x.repeat(2, 3),
    interleave=lambda x: x.repeat_interleave(2, 1),
    stack=lambda x: torch.stack([x, x]),
    shuffle=lambda x: F.pixel_shuffle(x.reshape(1, 4, 2, 3), 2),
    unshuffle=lambda x: F.pixel_unshuffle(x[None, None], 2),
    im2col=lambda x: F.unfold(x[None, None], 2),
    col2im=lambda x: F.fold(x[None], (3, 4), 2),
    rot90=torch.rot90,
    grid=lambda x: x * torch.meshgrid(torch.arange(4), torch.arange(6) // 2, indexing="ij")[1],
    eye=lambda x: x @ torch.eye(6, dtype=x.dtype),
    fractions=lambda x: x * torch.arange(0, 3, 0.5, dtype=x.dtype),
    cross=lambda x: torch.linalg.cross(x[:, :3], x[:, 3:]),
    remainders=lambda x: x * (torch.arange(6) % 4),
    put_in_order=lambda x: x * torch.zeros(4, dtype=torch.int64).index_put((x[:, 0].argsort(),), PLACES)[:, None],
    masked_scatter=lambda x: x.masked_scatter(x.detach() > 0, 3 * x.flip(0)),
    masked_scatter_rows=lambda x: x.masked_scatter(torch.tensor([True, False, True, True])[:, None], x[1:] * 2),
)

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
