"""Ranks that differ are named before they compute."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from roundlog.arithmetic import MachineError
from roundlog.training import rank_runs
from roundlog.training.rank_runs import RankMismatchError, agree, difference

from tests.engine.kept_jobs import kept_job

ALIKE = {"job": "ab" * 32, "version of tiebreak": "0.1.0", "version of PyTorch": "2.13.0", "machine": ""}


def named(*said: dict[str, str]) -> str | None:
    return difference(said, lambda rank: f"rank {rank} (process {rank + 70} on box)")


@pytest.mark.parametrize("key", ["job", "version of tiebreak", "version of PyTorch"])
@pytest.mark.parametrize("rank", [1, 2])
def test_the_first_rank_with_something_else_is_named(key: str, rank: int) -> None:
    assert named(ALIKE, ALIKE, ALIKE) is None
    said = [ALIKE] * rank + [{**ALIKE, key: "other"}] * (4 - rank)
    remedy = "give every rank the same job" if key == "job" else "install the same version on every machine"
    assert named(*said) == (
        f"rank {rank} (process {rank + 70} on box) has another {key} (other) than rank 0 ({ALIKE[key]}): {remedy}"
    )


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_cannot_compute_is_named(rank: int) -> None:
    said = [ALIKE, ALIKE, ALIKE]
    said[rank] = {**ALIKE, "machine": "this process rounds to zero"}
    assert named(*said) == f"rank {rank} (process {rank + 70} on box) cannot take part: this process rounds to zero"


def test_a_rank_is_tried_with_the_products_of_the_job_before_its_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[frozenset[tuple[str, str]]] = []

    def check(device: torch.device, products: Any) -> None:
        asked.append(frozenset(products))
        if len(asked) > 3:
            raise MachineError("a card does not compute products of bf16 as hopper has them")

    monkeypatch.setattr(rank_runs, "check_machine", check)
    monkeypatch.setattr(torch, "__version__", "2.13.0+cu128")
    told: list[bytes] = []
    ranks = cast(
        Any,
        SimpleNamespace(
            gather_bytes=lambda data: told.append(data) or [data],
            membership=SimpleNamespace(name=lambda rank: f"rank {rank}"),
            use=lambda device: None,
        ),
    )
    agree(ranks, kept_job("gpt_hopper"))
    agree(ranks, kept_job("gpt_bf16"))
    agree(ranks, None)
    # PyTorch's builds for other devices are one version.
    assert b'"version of PyTorch": "2.13.0"' in told[0]
    assert asked == [frozenset([("hopper", "bf16")]), frozenset(), frozenset()]
    with pytest.raises(RankMismatchError, match=r"^rank 0 cannot take part: a card does not compute products of bf16"):
        agree(ranks, kept_job("gpt_hopper"))
