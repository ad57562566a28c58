"""Methods of a subclass that only wrap the one that they replace, and those that do anything else."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest
from roundlog.capture.huggingface.overrides import only_wraps

logger = logging.getLogger(__name__)
journal: list[Any] = []


class Base:
    context: Any = None

    def step(self, model: Any, inputs: Any, count: Any = None) -> Any: ...

    def log(self, logs: Any) -> None: ...


class Everything(Base):
    """Wrappers without an effect."""

    def step(self, *args: Any, **kwargs: Any) -> Any:
        return super().step(*args, **kwargs)


class ByName(Base):
    def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
        """Words about it,
        in two lines."""
        return super().step(model, inputs, count=count)


class Loud(Base):
    def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
        start = time.perf_counter()
        found = super().step(model, inputs, count)
        seconds = time.perf_counter() - start
        if self.count % 10 == 0:  # type: ignore[attr-defined]
            print(f"a loss of {found.item():.3f} in {seconds} s", len(inputs["x"]))
            logger.info("%s", found.detach().mean().item())
        self.log({"loss": float(found), "seconds": seconds})
        return found


class Inside(Base):
    def step(self, *args: Any, **kwargs: Any) -> Any:
        with self.context:
            return super().step(*args, **kwargs)


class Doubles(Base):
    """What is not let through."""

    def step(self, *args: Any, **kwargs: Any) -> Any:
        return super().step(*args, **kwargs) * 2


class Drops(Base):
    def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
        return super().step(model, inputs)


class Swaps(Base):
    def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
        return super().step(inputs, model, count)


class OtherDefault(Base):
    def step(self, model: Any, inputs: Any, count: Any = 1) -> Any:
        return super().step(model, inputs, count)


class Twice(Base):
    def step(self, *args: Any, **kwargs: Any) -> Any:
        found = super().step(*args, **kwargs)
        again = super().step(*args, **kwargs)
        print(again)
        return found


class Counts(Base):
    def step(self, *args: Any, **kwargs: Any) -> Any:
        self.seen = 1
        return super().step(*args, **kwargs)


class Meddles(Base):
    def step(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        found = super().step(model, *args, **kwargs)
        print(model.head.weight.data.clamp_(-1, 1))
        return found


class Replaces(Base):
    def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
        inputs = {}
        return super().step(model, inputs, count)


class Fills(Base):
    def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
        inputs["x"] = 0
        return super().step(model, inputs, count)


class Shadows(Base):
    def step(self, *args: Any, **kwargs: Any) -> Any:
        print = self.context.act
        found = super().step(*args, **kwargs)
        print(found)
        return found


class Keeps(Base):
    def step(self, *args: Any, **kwargs: Any) -> Any:
        found = super().step(*args, **kwargs)
        journal.append(found)
        return found


class Calls(Base):
    def step(self, *args: Any, **kwargs: Any) -> Any:
        found = super().step(*args, **kwargs)
        print(self.context.mean())
        return found


class Sorts(Base):
    def step(self, *args: Any, **kwargs: Any) -> Any:
        found = super().step(*args, **kwargs)
        print(max([1, 2], key=self.context))
        return found


class Takes(Base):
    def step(self, *args: Any, **kwargs: Any) -> Any:
        print(sum(self.context))
        return super().step(*args, **kwargs)


class Writes(Base):
    def step(self, *args: Any, **kwargs: Any) -> Any:
        print("a step", file=self.context)
        return super().step(*args, **kwargs)


class Sometimes(Base):
    def step(self, *args: Any, **kwargs: Any) -> Any:
        if self.context:
            return super().step(*args, **kwargs)
        return None


class Forgets(Base):
    def step(self, *args: Any, **kwargs: Any) -> Any:
        super().step(*args, **kwargs)


class Elsewhere(Base):
    def step(self, *args: Any, **kwargs: Any) -> Any:
        return super().log(*args, **kwargs)


class Grandparent(Inside):
    def step(self, *args: Any, **kwargs: Any) -> Any:
        return super(Inside, self).step(*args, **kwargs)


class Static(Base):
    @staticmethod
    def step(*args: Any, **kwargs: Any) -> Any: ...


class Walrus(Base):
    def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
        print(inputs := {})
        return super().step(model, inputs, count)


GOOD = (Everything, ByName, Loud)
BAD = (
    *(Doubles, Drops, Swaps, OtherDefault, Twice, Counts, Meddles, Replaces, Fills, Shadows, Keeps, Calls, Sometimes),
    *(Sorts, Takes, Writes),
    *(Forgets, Elsewhere, Grandparent, Static, Walrus, Inside),
)


@pytest.mark.parametrize("kind", GOOD)
def test_a_method_that_passes_everything_on_is_a_wrapper(kind: type) -> None:
    assert only_wraps(vars(kind)["step"], Base.step)


@pytest.mark.parametrize("kind", BAD)
def test_a_method_that_does_more_is_none(kind: type) -> None:
    assert not only_wraps(vars(kind)["step"], Base.step)


def test_a_context_is_let_through_by_its_name() -> None:
    assert only_wraps(vars(Inside)["step"], Base.step, ["context"])
    assert not only_wraps(vars(Inside)["step"], Base.step, ["another"])


def test_a_method_without_its_source_is_none(tmp_path: Path) -> None:
    text = "class Own(Base):\n    def step(self, *args, **kwargs):\n        return super().step(*args, **kwargs){}\n"
    room: dict[str, Any] = {"Base": Base}
    exec(text.format(""), room)
    assert not only_wraps(vars(room["Own"])["step"], Base.step)
    # The file is another than the one that Python has read.
    file = tmp_path / "own.py"
    file.write_text(text.format(""))
    exec(compile(text.format(" * 2"), str(file), "exec"), room)
    assert not only_wraps(vars(room["Own"])["step"], Base.step)
    exec(compile(text.format(""), str(file), "exec"), room)
    assert only_wraps(vars(room["Own"])["step"], Base.step)
