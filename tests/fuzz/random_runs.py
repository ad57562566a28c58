"""Random whole runs: a task, its data anywhere, a training that is killed, claims, audits of them, and the model.

A round knows nothing of the features that it crosses but their promise: one root, whoever computes it and however;
every liar is found, and nobody else accused; a kill loses nothing."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import torch
from roundlog import load_into
from roundlog.capture import CaptureError
from roundlog.capture.captured import model_tensors
from roundlog.commitments import state_root
from roundlog.data import STORED
from roundlog.execution import StoppedError
from roundlog.execution.microbatch.analysis import samples_of
from roundlog.segment_audits.segment import Listing, read_listing, recorded, starting_state
from roundlog.storage import StorageError, load_tensors
from roundlog.training.export import trained_state
from roundlog.training.job import Job, JobLimits
from roundlog.training.options import RunOptions, StepEvent
from roundlog.training.run_files import checkpoint_path
from roundlog.training.trainer import Trainer
from safetensors.torch import load_model
from tiebreak.segment_audits.stored_jobs import Stores, fetch_without_data
from tiebreak.store import FolderStore

from tests.engine.segment_audits.published_runs import Trained
from tests.fuzz import random_audits
from tests.fuzz.killable import Crew
from tests.fuzz.random_audits import Auditing
from tests.fuzz.random_claims import LIES, NUISANCES, bend, claim_of
from tests.fuzz.random_deliveries import Delivery
from tests.fuzz.random_jobs import RandomJob, random_job
from tests.fuzz.random_places import places_of, require_other_orders_are_refused
from tests.fuzz.random_work import Reading, Running, holding, train

_SECONDS_TO_STOP = 60
"""Ranks that were left stop within 30 s where each has a processor; a campaign shares them."""


class Refused(Exception):
    """The task is refused by capture, in one sentence."""


@dataclass
class Round:
    """A round on its way."""

    seed: int
    room: Path
    by_processes: bool
    """Whether ranks, and processes that are killed, take part."""
    draw: Random = field(init=False)
    told: list[str] = field(default_factory=list)
    """What the round does, a clause each."""

    def __post_init__(self) -> None:
        self.draw = Random(self.seed)

    def play(self) -> None:
        """Plays it. Raises Refused, and AssertionError where a promise is broken."""
        made = random_job(self.draw.randrange(1 << 30))
        self.told.append(made.name)
        job = self._job(made)
        readings = self._readings(job)
        honest = self._reference(job, self.room / "reference")
        run_dir = self.room / "trained"
        if honest is None:
            running = Running(continue_after_stop=True)
            roots, _, _ = train(None, readings, running, run_dir)
            self.told.append("stops")
        else:
            self._train(job, readings, run_dir, honest)
            roots = honest
        trained = Trained(self.room, job, roots)
        run_dir.rename(trained.run)
        if honest is not None and self.draw.random() < 0.2:
            self.told.append(Delivery(trained, self.room / "delivery", self.draw).play())
        for number in range(self.draw.randint(1, 3)):
            self._audit(trained, readings, honest, self.room / f"claim {number}")
        if honest is not None:
            self._export(made, trained)
            self._lose_data(job, honest)

    def deliver(self) -> None:
        """Plays the delivery alone, of a run by one process. Raises as `play`."""
        made = random_job(self.draw.randrange(1 << 30))
        self.told.append(made.name)
        job = self._job(made)
        job.write(self.room / "job")
        honest = self._reference(job, self.room / "run")
        if honest is None:
            raise Refused("it stops")
        self.told.append(Delivery(Trained(self.room, job, honest), self.room / "delivery", self.draw).play())

    # The job.

    def _job(self, made: RandomJob) -> Job:
        places = places_of(made.columns, self.draw)
        try:
            job = Job.from_task(made.made_by(self.room / "data", places))
        except CaptureError as error:
            assert "\n" not in str(error) and len(str(error)) > 10, f"a refusal is not one sentence: {error!r}"
            raise Refused(str(error)) from error
        self.told.append("data: " + " ".join(f"{name} {place}" for name, place in places.items()))
        if self.draw.random() < 0.2:
            self._compare(made, places, job)
        if self.draw.random() < 0.2:
            self.told.append(require_other_orders_are_refused(made.columns, self.room / "big"))
        return job

    def _compare(self, made: RandomJob, places: dict[str, str], job: Job) -> None:
        """Holds the job against one whose data lie in memory, or elsewhere: the same but for the bytes in which small
        integers of tensors are stored, and the same roots in any case."""
        others = self.draw.choice([dict.fromkeys(places, "memory"), places_of(made.columns, self.draw)])
        again = Job.from_task(made.made_by(self.room / "data again", others))
        alike = all(
            column.widened(places[name]) is column.widened(others[name]) for name, column in made.columns.items()
        )
        assert (again.spec == job.spec) is alike, f"{places} and {others} make {'two jobs' if alike else 'one job'}"
        found = [self._reference(one, self.room / f"compared {number}") for number, one in enumerate((job, again))]
        assert found[0] == found[1], f"{places} and {others} come to other roots"

    def _readings(self, job: Job) -> list[Reading]:
        """The ways in which parties read the job: from files, and from stores, one of which may have lost or bent
        some blocks."""
        directory, store = self.room / "job", FolderStore(self.room / "store")
        job.write(directory)
        cid = store.add_directory(directory)
        bad = self.room / "bad store"
        shutil.copytree(self.room / "store", bad)
        for path in sorted(one for one in (bad / "blocks").rglob("*") if one.is_file()):
            chance = self.draw.random()
            if chance < 0.2:
                path.unlink()
            elif chance < 0.4 and path.stat().st_size:
                content = bytearray(path.read_bytes())
                content[self.draw.randrange(len(content))] ^= 16
                path.write_bytes(content)
        fetch_without_data(store, cid, self.room / "far", warn=print, max_bytes=1 << 30)
        stores = self.draw.choice([(str(self.room / "store"),), (str(bad), str(self.room / "store"))])
        found = [
            Reading(directory=directory, stores=stores, held=True),
            Reading(directory=directory, stores=stores, held=False),
            Reading(directory=self.room / "far", stores=stores, held=True),
        ]
        for one in found:
            assert one.read(JobLimits()).spec == job.spec, "another job is read than was written"
        return found

    def _reference(self, job: Job, where: Path) -> list[bytes] | None:
        """State roots of the run by one process, with what capture has given; None if it stops."""
        try:
            return Trainer(job, where).run().state_roots
        except StoppedError:
            return None

    # The training.

    def _running(self, job: Job) -> Running:
        keep = self.draw.choice([1, 1, 2, 3])
        return Running(
            micro_batches=self.draw.randint(1, min(3, samples_of(job.program))),
            keep_every=keep,
            publish_every=keep * self.draw.choice([0, 1, 1, 2, 3, 50]),
            store=str(self.room / "store"),
        )

    def _train(self, job: Job, readings: list[Reading], run_dir: Path, honest: list[bytes]) -> None:
        most = min(3, samples_of(job.program)) if self.by_processes else 1
        kills = self.draw.choice([0, 0, 1, 2])
        keep, publish, spoilt = 1, 0, ""
        while True:
            size, by = self.draw.randint(1, most), self.draw.choices(readings, k=3)
            running, done = self._running(job), len(recorded(run_dir, job.spec))
            self.told.append(
                f"trained by {size} from {' and '.join(map(str, by[:size]))}, "
                f"{running.micro_batches} parts, keep {running.keep_every}, publish {running.publish_every}"
            )
            keep = keep if done else 1
            publish = running.publish_every
            if not kills:
                break
            kills -= 1
            self._killed(Crew(train, size, by, running, run_dir), size, job, run_dir)
            keep = max(keep, running.keep_every)
            spoilt = spoilt or self._spoil(run_dir)
        if size > 1:
            roots, _, steps = Crew(train, size, by, running, run_dir).results()[0]
        else:
            roots, _, steps = train(None, by, running, run_dir)
        assert roots == honest, "the run comes to other roots"
        if keep == 1 and done and not spoilt:
            assert not steps or min(steps) >= done * job.spec.interval, "a kill has lost an interval"
        if publish:
            listing = read_listing(run_dir / "log" / "checkpoints.json", job.spec)
            assert list(listing.roots) == honest and listing.complete
            assert all(done % publish == 0 for done in listing.states)
            self._require_published(job, listing)

    def _require_published(self, job: Job, listing: Listing) -> None:
        source = Stores(
            locations=(str(self.room / "store"),), job_cid="", job_dir=self.room / "job", limits=JobLimits()
        )
        for done in listing.starts():
            starting_state(job, source, done, listing.start(done, job.spec.initial_state_root))

    def _spoil(self, run_dir: Path) -> str:
        """Bends a bit of a file that a killed run has left, sometimes; the name of the file."""
        files = [one for one in sorted(run_dir.rglob("*")) if one.is_file() and one.stat().st_size]
        files = [one for one in files if one.name not in ("run.json", "run.lock", "checkpoints.json")]
        if not files or self.draw.random() < 0.6:
            return ""
        chosen = self.draw.choice(files)
        bend(chosen, self.draw)
        self.told.append(f"a bit of {chosen.name} bent")
        return chosen.name

    def _killed(self, crew: Crew, size: int, job: Job, run_dir: Path) -> None:
        """Kills a rank at some moment; the others have to stop and name it."""
        wanted, victim = self.draw.randrange(job.spec.intervals + 1), self.draw.randrange(size)
        wait_more = self.draw.choice([0, 0.01, 0.05, 0.2])
        while len(recorded(run_dir, job.spec)) < wanted and not crew.is_over:
            time.sleep(0.003)
        time.sleep(wait_more)
        crew.kill(victim)
        killed = time.monotonic()
        ended = crew.ended()
        self.told.append(f"rank {victim} killed after {wanted} of {job.spec.intervals}")
        assert time.monotonic() - killed < _SECONDS_TO_STOP, f"ranks go on without another: {ended}"
        for rank, (how, what) in enumerate(ended):
            fine = how in ("result", "killed") if rank == victim else how == "result" or "LostRankError: rank" in what
            assert fine, f"rank {rank} of a crew whose rank {victim} was killed: {how} {what}"

    # The claim, and the audits of it.

    def _audit(self, trained: Trained, readings: list[Reading], honest: list[bytes] | None, room: Path) -> None:
        what = self.draw.choice([*LIES, *NUISANCES, *NUISANCES[:2]])
        what = what if honest is not None or what in LIES else "root"
        in_store = self.draw.random() < 0.5
        store = FolderStore(self.room / "store") if in_store else None
        claim = claim_of(trained, room / "claimed", what, self.draw, store)
        if honest is None:
            # Behind a stop every party has numbers of its own.
            ends = len(recorded(self.room / "reference", trained.job.spec))
            claim = replace(
                claim,
                first_wrong=min(ends, trained.job.spec.intervals if claim.first_wrong is None else claim.first_wrong),
            )
        self.told.append(f"claim: {what}{' in a store' if in_store else ''}, {len(claim.listing.states)} states")
        for number in range(self.draw.randint(2, 4)):
            reading = self.draw.choice(readings)
            job = self.draw.choice([trained.job, reading.read(JobLimits(micro_batches=3))])
            it = Auditing(
                job=job,
                reading=reading,
                others=self.draw.choices(readings, k=2),
                claim=claim,
                honest=honest,
                in_store=in_store,
                where=room / f"audit {number}",
                draw=self.draw,
            )
            cache = self.room / "far" / "data.cache"
            if cache.exists() and cache.stat().st_size and self.draw.random() < 0.2:
                bend(cache, self.draw)
            with holding(reading.held):
                self.told.append(random_audits.any_audit(it, by_processes=self.by_processes))

    def _lose_data(self, job: Job, honest: list[bytes]) -> None:
        """A training whose data are changed, cut off or lost in every store meanwhile: it ends with one sentence, or it
        comes to the right roots."""
        far = self.draw.random() < 0.5
        directory = self.room / ("far" if far else "job")
        if far:
            (directory / "data.cache").unlink(missing_ok=True)
        reading = Reading(directory=directory, stores=(str(self.room / "bad store"),), held=False)
        lost = reading.read(JobLimits())

        def on_step(event: StepEvent) -> None:
            if event.step == 0 and not far:
                _spoil(directory / "data.safetensors", self.draw)

        try:
            found = Trainer(lost, self.room / "lossy", RunOptions(on_step=on_step)).run().state_roots
        except StorageError as error:
            assert "\n" not in str(error) and "data.safetensors" in str(error), f"not a sentence: {error}"
            kept = recorded(self.room / "lossy", job.spec)
            assert kept == honest[: len(kept)], "wrong data have made a root"
            self.told.append("data lost")
            return
        assert found == honest, "wrong data have made a root"

    # The model.

    def _export(self, made: RandomJob, trained: Trained) -> None:
        final = load_tensors(checkpoint_path(trained.run, trained.job.spec.steps), trained.job.program.states)
        assert state_root(final.values()) == trained.roots[-1], "the final state is not that of its root"
        model = made.made_by(self.room / "fresh")().model
        load_into(model, trained.run)
        for name, tensor in model_tensors(model).items():
            if name in final:
                assert torch.equal(tensor.detach(), final[name]), f"{name} is loaded as something else"
        out = self.room / "model.safetensors"
        trained_state(trained.run).export(out)
        other = made.made_by(self.room / "fresh again")().model
        missing, unexpected = load_model(other, str(out), strict=False)
        stays = {name for name, buffer in other.named_buffers() if buffer.dtype not in STORED}
        assert set(missing) <= stays and not unexpected, (missing, unexpected)
        for (name, ours), theirs in zip(other.state_dict().items(), model.state_dict().values(), strict=True):
            assert torch.equal(ours, theirs), f"{name} is exported as something else"


def _spoil(path: Path, draw: Random) -> None:
    """Changes a file, in place or by cutting it off."""
    if draw.random() < 0.3:
        with path.open("r+b") as file:
            file.truncate(draw.randrange(path.stat().st_size))
    else:
        bend(path, draw)


def play(
    seed: int, room: Path, *, by_processes: bool, counts: Counter[str], part: Callable[[Round], None] = Round.play
) -> str:
    """Plays the round of a seed in an empty directory, or a part of it, and says in one line what it was. Raises what
    breaks in it, with that line as a note."""
    one = Round(seed, room, by_processes)
    try:
        part(one)
        counts["played"] += 1
    except Refused as error:
        counts["refused"] += 1
        one.told.append(f"refused: {error}")
    except BaseException as error:
        counts["violations"] += 1
        error.add_note(f"round {seed}: {'; '.join(one.told)}")
        raise
    return f"round {seed}: {'; '.join(one.told)}"
