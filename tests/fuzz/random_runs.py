"""Random whole runs: a task, its data anywhere, a training that is killed, claims, audits of them, and the model.

A round knows nothing of the features that it crosses but their promise: one root, whoever computes it and however;
every liar is found, and nobody else accused; a kill loses nothing."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
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
from tiebreak.segment_audits import Stores, fetch_without_data
from tiebreak.store import FolderStore

from tests.chaos.machine import Round
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


class RandomRun(Round):
    """A job, and all that happens to its run. `told`: what has happened, a clause each."""

    FAULTS = ("claim", "claim", "claim", "kill", "kill", "delivery", "lost data", "other places", "other byte order")
    STRIKES = 6

    def __init__(self, draw: Random, room: Path) -> None:
        super().__init__(draw, room)
        self.made = random_job(draw.randrange(1 << 30))
        self.told.append(self.made.name)
        self.places = places_of(self.made.columns, draw)
        self.claims, self.done, self.keep, self.spoilt = 0, 0, 1, ""
        self.trained: Trained | None = None
        try:
            self.job = Job.from_task(self.made.made_by(self.room / "data", self.places))
        except CaptureError as error:
            assert "\n" not in str(error) and len(str(error)) > 10, f"a refusal is not one sentence: {error!r}"
            self.told.append(f"refused: {error}")
            self.counts["refused"] += 1
            self.is_over = True
            return
        self.told.append("data: " + " ".join(f"{name} {place}" for name, place in self.places.items()))
        self.readings = self._readings(self.job)
        self.honest = self._reference(self.job, self.room / "reference")

    def strike(self, fault: str, draw: Random) -> None:
        self.draw = draw
        match fault:
            case "kill":
                if self.trained is None and self.honest is not None:
                    self._train_killed()
            case "claim":
                self._audit(self._trained(), self.room / f"claim {self.claims}")
                self.claims += 1
            case "delivery" if self.honest is not None:
                where = self.room / f"delivery {len(self.told)}"
                self.told.append(Delivery(self._trained(), where, draw).play())
            case "lost data" if self.honest is not None:
                self._lose_data(self.job, self.honest, self.room / f"lossy {len(self.told)}")
            case "other places":
                self._compare(self.made, self.places, self.job)
            case "other byte order":
                self.told.append(require_other_orders_are_refused(self.made.columns, self.room / "big"))

    def end(self) -> list[str]:
        if not self.is_over:
            trained = self._trained()
            if self.honest is not None:
                self._export(self.made, trained)
        return []

    # The job.

    def _compare(self, made: RandomJob, places: dict[str, str], job: Job) -> None:
        """Hold the job against one whose data lie in memory, or elsewhere: the same but for the bytes in which small
        integers of tensors are stored, and the same roots in any case."""
        others = self.draw.choice([dict.fromkeys(places, "memory"), places_of(made.columns, self.draw)])
        again = Job.from_task(made.made_by(self.room / f"data {len(self.told)}", others))
        alike = all(
            column.widened(places[name]) is column.widened(others[name]) for name, column in made.columns.items()
        )
        assert (again.spec == job.spec) is alike, f"{places} and {others} make {'two jobs' if alike else 'one job'}"
        found = self._reference(again, self.room / f"compared {len(self.told)}")
        assert found == self.honest, f"{places} and {others} come to other roots"
        self.told.append("compared")

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

    def _told_training(self) -> tuple[int, list[Reading], Running]:
        """Ranks of a training, how each reads the job, and how they compute."""
        size, by = self.draw.randint(1, min(3, samples_of(self.job.program))), self.draw.choices(self.readings, k=3)
        running, self.done = self._running(self.job), len(recorded(self.room / "training", self.job.spec))
        self.told.append(
            f"trained by {size} from {' and '.join(map(str, by[:size]))}, "
            f"{running.micro_batches} parts, keep {running.keep_every}, publish {running.publish_every}"
        )
        return size, by, running

    def _train_killed(self) -> None:
        size, by, running = self._told_training()
        run_dir = self.room / "training"
        self._killed(Crew(train, size, by, running, run_dir), size, self.job, run_dir)
        self.keep = max(self.keep if self.done else 1, running.keep_every)
        self.spoilt = self.spoilt or self._spoil(run_dir)
        self.counts["kills"] += 1

    def _trained(self) -> Trained:
        """The run, which is carried to its end if it has not been."""
        if self.trained is not None:
            return self.trained
        run_dir, roots = self.room / "training", self.honest
        if roots is None:
            roots, _, _ = train(None, self.readings, Running(continue_after_stop=True), run_dir)
            self.told.append("stops")
        else:
            self._train(self.job, roots, run_dir)
        self.trained = Trained(self.room, self.job, roots)
        run_dir.rename(self.trained.run)
        return self.trained

    def _train(self, job: Job, honest: list[bytes], run_dir: Path) -> None:
        size, by, running = self._told_training()
        if size > 1:
            roots, _, steps = Crew(train, size, by, running, run_dir).results()[0]
        else:
            roots, _, steps = train(None, by, running, run_dir)
        assert roots == honest, "the run comes to other roots"
        if self.keep == 1 and self.done and not self.spoilt:
            assert not steps or min(steps) >= self.done * job.spec.interval, "a kill has lost an interval"
        if running.publish_every:
            listing = read_listing(run_dir / "log" / "checkpoints.json", job.spec)
            assert list(listing.roots) == honest and listing.complete
            assert all(done % running.publish_every == 0 for done in listing.states)
            self._require_published(job, listing)

    def _require_published(self, job: Job, listing: Listing) -> None:
        source = Stores(
            locations=(str(self.room / "store"),), job_cid="", job_dir=self.room / "job", limits=JobLimits()
        )
        for done in listing.starts():
            starting_state(job, source, done, listing.start(done, job.spec.initial_state_root))

    def _spoil(self, run_dir: Path) -> str:
        """Bend a bit of a file that a killed run has left, sometimes; the name of the file."""
        files = [one for one in sorted(run_dir.rglob("*")) if one.is_file() and one.stat().st_size]
        files = [one for one in files if one.name not in ("run.json", "run.lock", "checkpoints.json")]
        if not files or self.draw.random() < 0.6:
            return ""
        chosen = self.draw.choice(files)
        bend(chosen, self.draw)
        self.told.append(f"a bit of {chosen.name} bent")
        return chosen.name

    def _killed(self, crew: Crew, size: int, job: Job, run_dir: Path) -> None:
        """Kill a rank at some moment; the others have to stop and name it."""
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

    def _audit(self, trained: Trained, room: Path) -> None:
        honest, readings = self.honest, self.readings
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
                self.told.append(random_audits.any_audit(it))

    def _lose_data(self, job: Job, honest: list[bytes], where: Path) -> None:
        """A training whose data are changed, cut off or lost in every store meanwhile: it ends with one sentence, or it
        comes to the right roots."""
        far = self.draw.random() < 0.5
        directory = where.with_name(f"{where.name} job")
        shutil.copytree(self.room / ("far" if far else "job"), directory)
        (directory / "data.cache").unlink(missing_ok=True)
        reading = Reading(directory=directory, stores=(str(self.room / "bad store"),), held=False)
        lost = reading.read(JobLimits())

        def on_step(event: StepEvent) -> None:
            if event.step == 0 and not far:
                _spoil(directory / "data.safetensors", self.draw)

        try:
            found = Trainer(lost, where, RunOptions(on_step=on_step)).run().state_roots
        except StorageError as error:
            assert "\n" not in str(error) and "data.safetensors" in str(error), f"not a sentence: {error}"
            kept = recorded(where, job.spec)
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
    """Change a file, in place or by cutting it off."""
    if draw.random() < 0.3:
        with path.open("r+b") as file:
            file.truncate(draw.randrange(path.stat().st_size))
    else:
        bend(path, draw)
