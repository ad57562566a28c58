"""Negative control of the floating-point environment: it is changed, which has to be noticed and put right.

    python -m machines.environment_control

prints as JSON which machine this is, and what it makes of every change."""

from __future__ import annotations

import ctypes
import json
import platform
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from roundlog.arithmetic import DisturbedError, MachineError, check_machine, right_float_mode
from roundlog.kernels.environment import ENVIRONMENT, computes_right
from roundlog.kernels.threads import in_parts

NEAREST = 0
_MODES = {
    "x86_64": {"down": 0x400, "up": 0x800, "towards zero": 0xC00},
    "aarch64": {"down": 0x800000, "up": 0x400000, "towards zero": 0xC00000},
}
ROUNDING = _MODES.get(platform.machine(), {}) if platform.system() == "Linux" else {}
"""Other rounding modes, as fesetround has them on this machine; none where they are not known."""


def set_rounding(mode: int) -> None:
    assert ctypes.CDLL(None).fesetround(mode) == 0


def flush() -> None:
    assert torch.set_flush_denormal(True)


def _to(mode: int) -> Callable[[], None]:
    return lambda: set_rounding(mode)


CHANGES: dict[str, Callable[[], None]] = {
    "flushing": flush,
    **{name: _to(mode) for name, mode in ROUNDING.items()},
}
"""Changes that libraries and users make to a thread of this machine."""


def put_right() -> None:
    """Undo all of them on this thread."""
    torch.set_flush_denormal(False)
    set_rounding(NEAREST)


@dataclass(frozen=True, slots=True)
class Reaction:
    """Reaction of the engine to a change."""

    refused: bool
    """Whether `check_machine` refuses the thread."""
    put_right: bool
    """Whether a step is computed in the right environment all the same, and the thread has its own again."""
    disturbed: bool
    """Whether a step notices that it is made in the middle."""
    disturbed_elsewhere: bool
    """Whether a step notices that it is made on a thread of the kernels."""

    @property
    def is_right(self) -> bool:
        return self.refused and self.put_right and self.disturbed and self.disturbed_elsewhere


def reaction(change: Callable[[], None]) -> Reaction:
    """The reaction to a change of this thread, which is then as it was."""
    caller, threads = threading.current_thread(), torch.get_num_threads()

    def elsewhere(start: int, stop: int) -> None:
        if threading.current_thread() is not caller:
            change()

    torch.set_num_threads(3)
    # torch's threads inherit the environment of the thread that starts them, and keep it: they start before the change.
    check_machine(torch.device("cpu"))
    try:
        change()
        refused = _raises(MachineError, lambda: check_machine(torch.device("cpu")))
        with right_float_mode("this control"):
            during = ENVIRONMENT.is_right() and computes_right()
        after = ENVIRONMENT.is_right() or computes_right()
        put_right()
        return Reaction(
            refused=refused,
            put_right=during and not after,
            disturbed=_disturbed(change),
            disturbed_elsewhere=_disturbed(lambda: in_parts(elsewhere, 3, 1 << 30)),
        )
    finally:
        put_right()
        torch.set_num_threads(threads)


def _disturbed(work: Callable[[], None]) -> bool:
    def step() -> None:
        with right_float_mode("this control"):
            work()

    return _raises(DisturbedError, step)


def _raises(kind: type[Exception], work: Callable[[], None]) -> bool:
    try:
        work()
    except kind:
        return True
    return False


def main() -> None:
    check_machine(torch.device("cpu"))
    reactions = {name: asdict(reaction(change)) for name, change in CHANGES.items()}
    machine = {"architecture": platform.machine(), "python": platform.python_version(), "torch": torch.__version__}
    print(json.dumps({**machine, "reactions": reactions}))


if __name__ == "__main__":
    main()
