"""Claims about a run, right and wrong: what a trainer publishes, in a run's directory or in a store."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from roundlog.commitments import state_root
from roundlog.segment_audits.segment import Listing, read_listing, write_listing
from roundlog.training.job import Job
from roundlog.training.run_files import checkpoint_path, load_kept
from roundlog.training.trainer import log_path
from tiebreak.store import FolderStore

from tests.engine.segment_audits.audit_workers import listing_of_run
from tests.engine.segment_audits.published_runs import Liar, Trained

LIES = ("state", "state alone", "root", "last root")
"""Claims that are wrong."""

NUISANCES = ("nothing", "nothing", "states", "swapped", "unlisted", "log cut", "log bent", "log gone", "log of another")
"""Right claims beside which something else is wrong."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim in a directory, as a trainer would leave it."""

    what: str
    run_dir: Path
    roots: list[bytes]
    listing: Listing
    first_wrong: int | None
    log_is_right: bool

    @property
    def is_right(self) -> bool:
        return self.first_wrong is None


class _BentState(Liar):
    """A liar of any job: one element of one tensor of a state is another number."""

    def __init__(self, trained: Trained, directory: Path, draw: Random) -> None:
        super().__init__(trained, directory)
        self._draw = draw

    def lie(self, interval: int, *, consistent: bool, by: float = 0.0) -> None:
        states, before, _ = load_kept(self.run, self.job, (interval + 1) * self.job.spec.interval)
        kinds, named = self.job.program.moved_states, zip(self.job.program.states, states, strict=True)
        moved = [x for name, x in named if name in kinds]
        while state_root(states) == before:
            flat = self._draw.choice([one for one in moved if one.numel()]).view(-1)
            place = self._draw.randrange(len(flat))
            if flat.dtype == torch.bool:
                flat[place] = ~flat[place]
            elif flat.dtype == torch.float32 and bool(flat[place].isfinite()):
                flat[place] = self._draw.choice(
                    [torch.nextafter(flat[place], torch.tensor(torch.inf)), flat[place] + 1e-3]
                )
            elif flat.dtype in (torch.bfloat16, torch.float16) and bool(flat[place].isfinite()):
                flat.view(torch.int16)[place] ^= 1
            elif flat.dtype == torch.int64:
                flat[place] += 1
        self._put(interval, states)
        if consistent:
            self._follow(interval, states)


def claim_of(trained: Trained, run_dir: Path, what: str, draw: Random, store: FolderStore | None) -> Claim:
    """A claim that rests on a copy of a run. store: where its states are published; None if they are read from its
    directory."""
    liar, first_wrong, intervals = _BentState(trained, run_dir, draw), None, trained.job.spec.intervals
    if what in LIES:
        first_wrong = intervals - 1 if what == "last root" else draw.randrange(intervals)
        kept = checkpoint_path(run_dir, (first_wrong + 1) * trained.job.spec.interval).exists()
        if what.startswith("state") and kept:
            liar.lie(first_wrong, consistent=what == "state")
        else:
            liar.roots[first_wrong] = draw.randbytes(32)
    _write_roots(run_dir, trained.job, liar.roots)
    listing = listing_of_run(run_dir, trained.job.spec)
    if store is not None:
        published = _listed(run_dir, trained.job)
        states = {
            done: store.add_file(checkpoint_path(run_dir, done * trained.job.spec.interval))
            for done in (listing.states if published is None else published.states)
            if done in listing.states
        }
        listing = Listing(roots=listing.roots, states=states)
        write_listing(run_dir / "log", trained.job.spec, listing)
        listing = read_listing(run_dir / "log" / "checkpoints.json", trained.job.spec)
    _damage(run_dir, trained.job, what, draw, listing.states if store is None else {})
    return Claim(
        what=what,
        run_dir=run_dir,
        roots=liar.roots,
        listing=Listing(roots=listing.roots, states=_disturbed(listing.states, what, draw)),
        first_wrong=first_wrong,
        log_is_right=not what.startswith("log"),
    )


def _write_roots(run_dir: Path, job: Job, roots: list[bytes]) -> None:
    from roundlog.training.run import root_sum

    (run_dir / "roots").write_bytes(b"".join(roots))
    sums = [root_sum(job.spec.run_id, interval, root) for interval, root in enumerate(roots)]
    (run_dir / "roots.sums").write_bytes(b"".join(sums))


def _listed(run_dir: Path, job: Job) -> Listing | None:
    path = run_dir / "log" / "checkpoints.json"
    return read_listing(path, job.spec) if path.exists() else None


def _disturbed(states: Mapping[int, str], what: str, draw: Random) -> dict[int, str]:
    """Addresses of states, some of them wrong."""
    found, numbers = dict(states), list(states)
    if what == "swapped" and len(numbers) > 1:
        one, other = draw.sample(numbers, 2)
        found[one], found[other] = found[other], found[one]
    elif what == "unlisted":
        found = {done: address for done, address in found.items() if draw.random() < 0.5}
    elif what == "states" and numbers:
        found[draw.choice(numbers)] = draw.choice(["/nowhere", "bafkqaaa", "0x"])
    return found


def _damage(run_dir: Path, job: Job, what: str, draw: Random, states: Mapping[int, str]) -> None:
    """Damage files of a claim that its roots do not rest on."""
    if what == "states" and states:
        path = Path(draw.choice(list(states.values())))
        bend(path, draw)
    log = log_path(run_dir / "log", draw.randrange(job.spec.intervals))
    if what == "log cut":
        log.write_bytes(log.read_bytes()[: draw.randrange(log.stat().st_size)])
    elif what == "log bent":
        bend(log, draw)
    elif what == "log gone":
        log.unlink()
    elif what == "log of another":
        other = [path for path in sorted((run_dir / "log").glob("*.rlog")) if path != log]
        if other:
            shutil.copyfile(draw.choice(other), log)
        else:
            log.write_bytes(b"")


def bend(path: Path, draw: Random) -> None:
    """Change one bit of a file that has some, in place."""
    place = draw.randrange(path.stat().st_size)
    with path.open("r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1 << draw.randrange(8)]))
