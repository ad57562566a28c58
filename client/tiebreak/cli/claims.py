"""Claims of trainers as a command is given them: a checkpoint root, or the roots on record in a run's directory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tiebreak.cli.failures import CommandError

if TYPE_CHECKING:
    from roundlog.training.job import Job

_MEND = "let `tiebreak train` end in the same directory, which mends it"


def as_root(text: str) -> bytes | None:
    """The root that a text is in hex; None for anything else."""
    is_root = re.fullmatch("(0x)?[0-9a-fA-F]{64}", text)
    return bytes.fromhex(text.removeprefix("0x")) if is_root else None


def read_claim(text: str) -> bytes | list[bytes]:
    """A checkpoint root in hex, or the state roots on record in a run directory. Raises CommandError."""
    if (root := as_root(text)) is not None:
        return root
    path = Path(text) / "roots"
    if not path.is_file():
        raise CommandError(f"{text} is neither a root of 64 hex digits nor the directory of a run: check the claim.")
    if path.stat().st_size > 32 << 32:
        raise CommandError(f"{path} is too large to be the record of a run: check the directory.")
    content = path.read_bytes()
    if len(content) % 32:
        raise CommandError(f"{path} does not hold whole roots of 32 bytes: {_MEND}.")
    return [content[i : i + 32] for i in range(0, len(content), 32)]


def check_roots(directory: Path, roots: list[bytes], job: Job) -> None:
    """Refuses roots that the run in this directory did not write down for this job, so that a damaged file accuses
    nobody. Raises CommandError."""
    from roundlog.training.run import root_sum

    if len(roots) != job.spec.intervals:
        raise CommandError(f"the run {directory} has {len(roots)} of {job.spec.intervals} checkpoints: {_MEND}.")
    path = directory / "roots.sums"
    if not path.is_file():
        raise CommandError(f"there is no {path}, which says whether the roots are whole: copy it, too, or {_MEND}.")
    sums = b"".join(root_sum(job.spec.run_id, interval, root) for interval, root in enumerate(roots))
    with path.open("rb") as file:
        recorded = file.read(len(sums) + 1)
    wrong = [i for i in range(len(roots)) if sums[32 * i : 32 * i + 32] != recorded[32 * i : 32 * i + 32]]
    if wrong:
        raise CommandError(
            f"the root of interval {wrong[0]} in {directory / 'roots'} is not what the run wrote there, or the run is "
            f"another job's: copy the directory again, or {_MEND}."
        )
