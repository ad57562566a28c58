"""Numbers of Python's that steps add up from their values: they may be shown, and decide nothing."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from roundlog.capture import CaptureError, Task, capture
from torch import Tensor, nn


def task_of(function: Callable[[Any, Tensor], Tensor]) -> Task:
    """A task whose loss is what a function of some numbers and a loss gives; they change in every step."""
    torch.manual_seed(0)
    model, numbers = nn.Linear(3, 1), SimpleNamespace(total=0.0, count=0, last=1)
    return Task(
        model=model,
        loss=lambda m, batch: function(numbers, m(batch["x"]).square().mean()),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"x": torch.randn(8, 3)},
        batch_size=4,
        steps=20,
        interval=10,
        seed=0,
    )


def with_total(then: Callable[[Any, Tensor], Any]) -> Callable[[Any, Tensor], Tensor]:
    """Adds the loss to a total, and does something else with the numbers."""

    def loss(numbers: Any, found: Tensor) -> Tensor:
        numbers.total += found.item()
        numbers.count += 1
        result = then(numbers, found)
        return result if isinstance(result, Tensor) else found

    return loss


def _resets(numbers: Any, found: Tensor) -> None:
    if numbers.count % 10 == 0:
        print(f"{numbers.total / 10:.3f}")
        numbers.total = 0.0


def _averages(numbers: Any, found: Tensor) -> None:
    numbers.last = 0.1 * found.item() + 0.9 * numbers.last
    print(f"{numbers.last:.3f}", numbers.total, round(numbers.total, 3), -numbers.total)


def _weighs(numbers: Any, found: Tensor) -> None:
    numbers.last += found.item() * 4 - numbers.count
    numbers.mean = None
    print(f"{numbers.last / numbers.count}", copy.deepcopy(numbers.last))


@pytest.mark.parametrize("then", [_resets, _averages, _weighs, lambda numbers, found: None])
def test_what_is_only_shown_is_captured(then: Callable[[Any, Tensor], Any]) -> None:
    plain = capture(task_of(lambda numbers, found: found))
    assert capture(task_of(with_total(then))).program == plain.program


def _catches(ask: Callable[[Any, Tensor], Any]) -> Callable[[Any, Tensor], Tensor]:
    def asked(numbers: Any, found: Tensor) -> Tensor:
        try:
            ask(numbers, found)
        except Exception:
            return 2 * found
        return found

    return asked


USES: dict[str, Callable[[Any, Tensor], Any]] = {
    "a product": lambda numbers, found: found * numbers.total,
    "a product from the left": lambda numbers, found: numbers.total * found,
    "a product by name": lambda numbers, found: torch.mul(found, numbers.total),
    "an added scalar": lambda numbers, found: torch.add(found, found, alpha=numbers.total),
    "a tensor": lambda numbers, found: found * torch.tensor(numbers.total),
    "a list": lambda numbers, found: found * torch.tensor([numbers.total]).sum(),
    "a full tensor": lambda numbers, found: found * torch.full((), numbers.total),
    "an array": lambda numbers, found: found * float(np.array(numbers.total)),
    "a comparison": lambda numbers, found: found if numbers.total > 3 else 2 * found,
    "a comparison with a count": lambda numbers, found: found if numbers.count < numbers.total else 2 * found,
    "a minimum": lambda numbers, found: min(numbers.total, 1.0),
    "truth": lambda numbers, found: found if numbers.total else 2 * found,
    "equality": lambda numbers, found: found if numbers.total == 0.0 else 2 * found,
    "membership": lambda numbers, found: found if numbers.total in (0.0, 1.0) else 2 * found,
    "a key": lambda numbers, found: {0.0: found}.get(numbers.total, 2 * found),
    "a class": lambda numbers, found: found if isinstance(numbers.total, float) else 2 * found,
    "a type": lambda numbers, found: found if type(numbers.total) is float else 2 * found,
    "a method": lambda numbers, found: found if numbers.total.is_integer() else 2 * found,
    "text": lambda numbers, found: found if str(numbers.total) == "1.0" else 2 * found,
    "a float": lambda numbers, found: found * float(numbers.total),
    "a whole number": lambda numbers, found: found * round(numbers.total),
    "old text": lambda numbers, found: "%.3f" % numbers.total,  # noqa: UP031
    "a quotient": lambda numbers, found: 1.0 / numbers.total,
    "a quotient of two": lambda numbers, found: numbers.total / found.item(),
    "a power": lambda numbers, found: numbers.total**2,
}


@pytest.mark.parametrize("catches", [False, True])
@pytest.mark.parametrize("use", USES)
def test_whatever_else_is_done_is_refused(use: str, catches: bool) -> None:
    ask = _catches(USES[use]) if catches else USES[use]
    with pytest.raises(CaptureError) as caught:
        capture(task_of(with_total(ask)))
    # An operator whose gradient asks for the number is refused without the line.
    assert re.search(r"\(at test_logged_numbers\.py:\d+\)|^the step's control flow depends on", str(caught.value))


@pytest.mark.parametrize("reads", [False, True])
def test_a_count_in_a_tensor_may_be_printed_and_a_growing_list_may_not(reads: bool) -> None:
    losses, steps = [], torch.zeros((), dtype=torch.long)

    def loss(numbers: Any, found: Tensor) -> Tensor:
        losses.append(found.item())
        steps.add_(1)
        print(len(losses) if reads else steps.item())
        return found

    if reads:
        with pytest.raises(
            CaptureError, match=r"reads losses, which every step makes longer.*print\(count\.item\(\)\)"
        ):
            capture(task_of(loss))
    else:
        capture(task_of(loss))


def test_a_count_that_is_printed_in_every_step_is_followed() -> None:
    def loss(numbers: Any, found: Tensor) -> Tensor:
        numbers.count += 1
        print(numbers.count)
        return found

    assert capture(task_of(loss)).program.schedule_names == ("0/lr",)


def test_what_a_buffer_that_no_step_writes_gives_is_a_number_like_others() -> None:
    def loss(numbers: Any, found: Tensor) -> Tensor:
        numbers.count += 1
        return found * (task.model.scale.item() + numbers.count // 100)

    task = task_of(loss)
    task.model.register_buffer("scale", torch.tensor(2.0))
    capture(task)


def test_the_number_is_named() -> None:
    with pytest.raises(CaptureError, match=r"uses numbers\.total, a number of Python that steps compute .*printed"):
        capture(task_of(with_total(USES["a product"])))


def test_a_division_by_a_count_that_is_nought_is_an_error_in_the_first_step() -> None:
    def loss(numbers: Any, found: Tensor) -> Tensor:
        numbers.total += found.item()
        try:
            print(numbers.total / numbers.count)
        except ZeroDivisionError:
            return 2 * found
        finally:
            numbers.count += 1
        return found

    factors = capture(task_of(loss)).schedule[:, -1].tolist()
    assert factors == [0.0] + [1.0] * (len(factors) - 1)  # whether the loss is not doubled
