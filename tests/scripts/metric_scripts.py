"""Losses over pairs, queues and teachers

Teachers, queues and centres are state: tensors of their final shape from the start, which a step may write into."""

from __future__ import annotations

import copy

import torch
from roundlog import Task
from torch import Tensor, nn
from torch.nn import functional as F

from tests.scripts.script_corpus import RUN, refused, script
from tests.scripts.script_rows import images, pairs, rows


def encoder() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))


@script("A Siamese net with contrastive loss", source="PyTorch's example of a Siamese network")
def siamese() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        apart = F.pairwise_distance(m(batch["a"]), m(batch["b"]))
        same = batch["same"].float()
        return (same * apart.square() + (1 - same) * F.relu(1 - apart).square()).mean()

    model = encoder()
    return Task(model=model, loss=loss, optimizer=torch.optim.Adam(model.parameters()), dataset=pairs(), **RUN)


@script("Triplet loss", source="FaceNet, with PyTorch's TripletMarginLoss")
def triplet() -> Task:
    model, criterion = encoder(), nn.TripletMarginLoss(margin=1.0)
    return Task(
        model=model,
        loss=lambda m, batch: criterion(m(batch["a"]), m(batch["b"]), m(batch["a"].roll(1, 0))),
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
        dataset=pairs(),
        **RUN,
    )


@script(
    "Triplets of the batch, mined by masks",
    source="FaceNet, as in small tutorials on online mining",
    outcome=refused("keep all rows, and weigh them by the mask", rewrite="mined_triplets_by_weights"),
)
def mined_triplets() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        codes = F.normalize(m(batch["x"]), dim=1)
        apart = (2.0 - 2.0 * codes @ codes.T).clamp(min=0.0)
        same = batch["y"][:, None] == batch["y"][None]
        other = ~torch.eye(len(codes), dtype=torch.bool)
        further = apart[:, :, None] - apart[:, None, :] + 0.2
        triplets = (same & other)[:, :, None] & ~same[:, None, :]
        hard = triplets & (further > 0)
        return further[hard].sum() / (hard.sum() + 1e-16) + 0.01 * apart[same & other].sum()

    model = encoder()
    return Task(model=model, loss=loss, optimizer=torch.optim.Adam(model.parameters()), dataset=rows(), **RUN)


@script("Triplets of the batch, weighed by masks", source="the same, written for fixed shapes")
def mined_triplets_by_weights() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        codes = F.normalize(m(batch["x"]), dim=1)
        apart = (2.0 - 2.0 * codes @ codes.T).clamp(min=0.0)
        same = batch["y"][:, None] == batch["y"][None]
        other = ~torch.eye(len(codes), dtype=torch.bool)
        further = apart[:, :, None] - apart[:, None, :] + 0.2
        hard = (same & other)[:, :, None] & ~same[:, None, :] & (further > 0)
        return (further * hard).sum() / (hard.sum() + 1e-16) + 0.01 * (apart * (same & other)).sum()

    model = encoder()
    return Task(model=model, loss=loss, optimizer=torch.optim.Adam(model.parameters()), dataset=rows(), **RUN)


@script("Cosine embedding loss", source="sentence pairs, as in sentence-transformers")
def cosine_embedding() -> Task:
    model = encoder()
    return Task(
        model=model,
        loss=lambda m, batch: F.cosine_embedding_loss(m(batch["a"]), m(batch["b"]), 2 * batch["same"] - 1, margin=0.2),
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
        dataset=pairs(),
        **RUN,
    )


@script("Focal loss", source="RetinaNet (Lin et al. 2017)")
def focal() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        ce = F.cross_entropy(m(batch["x"]), batch["y"], reduction="none")
        return (0.25 * (1 - torch.exp(-ce)) ** 2 * ce).mean()

    model = encoder()
    return Task(model=model, loss=loss, optimizer=torch.optim.Adam(model.parameters()), dataset=rows(), **RUN)


@script("Knowledge distillation", source="PyTorch's tutorial on knowledge distillation")
def distillation() -> Task:
    model, teacher = encoder(), encoder().eval()

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            soft = F.softmax(teacher(batch["x"]) / 2, dim=1)
        y = m(batch["x"])
        return 0.25 * F.kl_div(F.log_softmax(y / 2, 1), soft, reduction="batchmean") * 4 + F.cross_entropy(
            y, batch["y"]
        )

    return Task(model=model, loss=loss, optimizer=torch.optim.Adam(model.parameters()), dataset=rows(), **RUN)


@script("SimCLR with NT-Xent", source="SimCLR (Chen et al. 2020)")
def simclr() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        views = torch.cat([batch["x"] + 0.1 * torch.randn_like(batch["x"]) for _ in range(2)])
        z = F.normalize(m(views), dim=1)
        similar = (z @ z.t() / 0.5).masked_fill(torch.eye(len(z), dtype=torch.bool), float("-inf"))
        return F.cross_entropy(similar, torch.arange(len(z)).roll(len(z) // 2))

    model = encoder()
    return Task(model=model, loss=loss, optimizer=torch.optim.Adam(model.parameters()), dataset=rows(), **RUN)


class MoCo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = encoder()
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(8, 32), dim=0))
        self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def momentum(self) -> None:
        for q, k in zip(self.q.parameters(), self.k.parameters(), strict=True):
            k.data = k.data * 0.99 + q.data * 0.01


@script(
    "A queue at a pointer of MoCo",
    source="the code of MoCo (He et al. 2020)",
    outcome=refused("turns a tensor that it computes into numbers of Python", rewrite="moco_shifted"),
)
def moco() -> Task:
    class Net(MoCo):
        @torch.no_grad()
        def enqueue(self, keys: Tensor) -> None:
            ptr = int(self.ptr)
            self.queue[:, ptr : ptr + len(keys)] = keys.t()
            self.ptr[0] = (ptr + len(keys)) % 32

        def forward(self, x: Tensor) -> Tensor:
            q = F.normalize(self.q(x), dim=1)
            with torch.no_grad():
                self.momentum()
                k = F.normalize(self.k(x + 0.1 * torch.randn_like(x)), dim=1)
            logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone()], dim=1) / 0.07
            self.enqueue(k)
            return F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))

    model = Net()
    return Task(
        model=model,
        loss=lambda m, batch: m(batch["x"]),
        optimizer=torch.optim.SGD(model.q.parameters(), lr=0.03),
        dataset=rows(),
        **RUN,
    )


@script("A queue that is shifted, and a teacher by lerp_", source="MoCo, with a queue that every step shifts")
def moco_shifted() -> Task:
    class Net(MoCo):
        def forward(self, x: Tensor) -> Tensor:
            q = F.normalize(self.q(x), dim=1)
            with torch.no_grad():
                for mine, slow in zip(self.q.parameters(), self.k.parameters(), strict=True):
                    slow.lerp_(mine, 0.01)
                k = F.normalize(self.k(x + 0.1 * torch.randn_like(x)), dim=1)
            logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone()], dim=1) / 0.07
            self.queue.copy_(torch.cat([k.t(), self.queue[:, : -len(k)]], dim=1))
            return F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))

    model = Net()
    return Task(
        model=model,
        loss=lambda m, batch: m(batch["x"]),
        optimizer=torch.optim.SGD(model.q.parameters(), lr=0.03),
        dataset=rows(),
        **RUN,
    )


@script("A teacher of BYOL", source="BYOL (Grill et al. 2020)")
def byol() -> Task:
    online, predictor = encoder(), nn.Linear(8, 8)
    target = copy.deepcopy(online).requires_grad_(False)

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            for new, old in zip(online.parameters(), target.parameters(), strict=True):
                old.mul_(0.99).add_(new, alpha=0.01)
        one, two = (batch["x"] + 0.1 * torch.randn_like(batch["x"]) for _ in range(2))
        return 2 - 2 * F.cosine_similarity(m(one), target(two)).mean()

    model = nn.Sequential(online, predictor)
    return Task(model=model, loss=loss, optimizer=torch.optim.Adam(model.parameters()), dataset=rows(), **RUN)


@script(
    "A mean teacher",
    source="Mean Teacher (Tarvainen and Valpola 2017)",
    outcome=refused("a step changes loss.step, from 2 to 3", rewrite="mean_teacher_by_numbers"),
)
def mean_teacher() -> Task:
    model = encoder()
    teacher, step = copy.deepcopy(model), 0

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        nonlocal step
        step += 1
        alpha = min(1 - 1 / (step + 1), 0.99)
        for slow, fast in zip(teacher.parameters(), m.parameters(), strict=True):
            slow.data.mul_(alpha).add_(fast.data, alpha=1 - alpha)
        y = m(batch["x"])
        return F.cross_entropy(y, batch["y"]) + F.mse_loss(y, teacher(batch["x"]).detach())

    return Task(model=model, loss=loss, optimizer=torch.optim.Adam(model.parameters()), dataset=rows(), **RUN)


@script("A mean teacher whose rate is stated", source="the same, with the numbers of all steps given to the task")
def mean_teacher_by_numbers() -> Task:
    model = encoder()
    teacher = copy.deepcopy(model)

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        for slow, fast in zip(teacher.parameters(), m.parameters(), strict=True):
            slow.data.mul_(batch["alpha"]).add_(fast.data * (1 - batch["alpha"]))
        y = m(batch["x"])
        return F.cross_entropy(y, batch["y"]) + F.mse_loss(y, teacher(batch["x"]).detach())

    numbers = {"alpha": lambda step: min(1 - 1 / (step + 2), 0.99)}
    optimizer = torch.optim.Adam(model.parameters())
    return Task(model=model, loss=loss, optimizer=optimizer, dataset=rows(), numbers=numbers, **RUN)


@script("A centre and sharpened targets of DINO", source="the code of DINO (Caron et al. 2021)")
def dino() -> Task:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("center", torch.zeros(1, 8))

        def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
            soft = F.softmax((teacher - self.center) / 0.04, dim=-1).detach()
            found = torch.sum(-soft * F.log_softmax(student / 0.1, dim=-1), dim=-1).mean()
            self.center = self.center * 0.9 + teacher.detach().mean(0, keepdim=True) * 0.1
            return found

    model, teacher, criterion = encoder(), encoder(), Loss()
    return Task(
        model=model,
        loss=lambda m, batch: criterion(m(batch["x"]), teacher(batch["x"])),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        dataset=rows(),
        **RUN,
    )


@script("CLIP: images and rows with a learned temperature", source="CLIP (Radford et al. 2021)")
def clip() -> Task:
    class Clip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image, self.text = nn.Sequential(nn.Flatten(), nn.Linear(192, 8)), nn.Linear(6, 8)
            self.logit_scale = nn.Parameter(torch.tensor(2.6592))

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            a, b = F.normalize(self.image(x), dim=-1), F.normalize(self.text(t), dim=-1)
            logits, labels = self.logit_scale.exp().clamp(max=100) * a @ b.t(), torch.arange(len(x))
            return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2

    model = Clip()
    return Task(
        model=model,
        loss=lambda m, batch: m(batch["x"], batch["t"]),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        dataset={**images(), "t": torch.randn(32, 6)},
        **RUN,
    )
