"""The heartbeat of a role: one line at intervals with its work, waits, stake and deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiebreak.roles.notices import Progress, What

if TYPE_CHECKING:
    from tiebreak.roles.role import Role


class Pulse:
    """A heartbeat at the first look, and then every `seconds` seconds."""

    def __init__(self, role: Role, seconds: float) -> None:
        self._role, self._seconds = role, seconds
        self._next = float("-inf")

    def beat(self, progress: Progress) -> None:
        """Tells the heartbeat if it is due."""
        now = self._role.context.clock()
        if now < self._next or progress.finished:
            return
        self._next = now + self._seconds
        self._role.tell(What.HEARTBEAT, self.line(progress))

    def line(self, progress: Progress) -> str:
        """The state of the role, in one sentence."""
        parts = [*self._role.doing(), progress.state or "waits"]
        parts.append(f"{progress.stake} wei at stake" if progress.stake else "nothing at stake")
        if progress.deadline is not None:
            left = progress.deadline - self._role.context.now()
            parts.append(f"has to move within {left} seconds" if left >= 0 else "is out of time")
        if progress.until is not None:
            parts.append(f"nothing to do for {max(0, progress.until - self._role.context.now())} seconds")
        if repeated := self._role.repeated_warnings():
            parts.append(repeated)
        return "; ".join(parts)
