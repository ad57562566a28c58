"""Resources of this process: the memory that it can use (what the machine has left, and what its control group allows),
and the environment that programs which are not ours get from it.

Asking the kernel for more memory than that ends the process without a word, and with it every defence in a game.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

_ROOM = 256 << 20
"""Bytes that stay free for the interpreter, the chain and the other programs."""

_FALLBACK = 4 << 30
"""Bytes that are assumed where the system does not tell."""


def usable_memory(root: Path = Path("/")) -> int:
    """Return bytes that this process can use at present: the least of what the kernel counts as available (MemAvailable
    in /proc/meminfo, see proc(5)) and what the limits of its control groups leave (cgroups(7), versions 1 and 2).

    `root` is there for tests.
    """
    found = [left for left in (_available(root), *_left_in_groups(root)) if left is not None]
    return max(_ROOM, (min(found) if found else _FALLBACK) - _ROOM)


def _available(root: Path) -> int | None:
    match = re.search(r"^MemAvailable:\s*(\d+) kB$", system_text(root / "proc/meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _left_in_groups(root: Path) -> list[int | None]:
    """Limit less use, for every group from this process's up to the top one."""
    left: list[int | None] = []
    for line in system_text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            top, limit, used, cache = root / "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
            limit, used, cache = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        # In a container the path may be that of the host; then the top shows the container's own group.
        group = top / path.strip("/")
        for place in {top, *(one for one in (group, *group.parents) if one.is_relative_to(top))}:
            left.append(_left(place, limit, used, cache))
    return left


def _left(group: Path, limit: str, used: str, cache: str) -> int | None:
    most, now = system_text(group / limit).strip(), system_text(group / used).strip()
    if not most.isdecimal() or not now.isdecimal():
        return None  # "max", or no such file
    # Pages of files that nobody has touched lately are given back before anything is killed.
    match = re.search(rf"^{cache} (\d+)$", system_text(group / "memory.stat"), re.MULTILINE)
    return max(0, int(most) - int(now) + (int(match[1]) if match else 0))


def system_text(path: Path) -> str:
    """Return the text of a file of the system; empty where it cannot be read."""
    try:
        return path.read_text("ascii", "replace")
    except OSError:
        return ""


def environment_of_others() -> dict[str, str]:
    """Return the variables of this process without Tiebreak's own. Some of them hold keys and passwords, others URLs of
    nodes, signers and services, which often have an access token in them; no other program needs any."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TIEBREAK_")}


_LIMIT = 1024 * 12
"""Nested calls that py-evm asks for. json, copy and repr stay within a C stack of 8 MiB with it."""


def restore_recursion_limit() -> None:
    """Undo what py_ecc does on import: it allows 100,000 nested calls, more than the C stack holds.

    With that limit, deeply nested JSON from a stranger (a node, a keystore, a fetched job) ends the process with a
    segmentation fault instead of a RecursionError. eth-account, py-evm and web3 load py_ecc, so every module that
    imports one of them calls this right after its imports; py_ecc's import cannot happen a second time."""
    import py_ecc  # noqa: F401  (so that nobody imports it later and raises the limit again)

    sys.setrecursionlimit(min(_LIMIT, sys.getrecursionlimit()))
