"""`tiebreak train`: reproducible training in directories, without any chain."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from tiebreak.cli import network, output
from tiebreak.cli.failures import CommandError, WrongUsage
from tiebreak.cli.job_files import published_job, read_job
from tiebreak.cli.network import ContentOptions, published_every
from tiebreak.cli.option_groups import JOB, JSON, Computing, command, option
from tiebreak.cli.output import Listener
from tiebreak.cli.ranks import rank_group

if TYPE_CHECKING:
    from collections.abc import Callable

    from roundlog.rounding import RecordingRounding
    from roundlog.segment_audits import Publisher
    from roundlog.training import Job, Validation


@command(
    "train",
    "tiebreak train job --run trained",
    "tiebreak train job --run trained --keep-every 10 --threads 4",
    "tiebreak train job --run trained --publish-every 1 --store /srv/store",
    "tiebreak train job --run trained --validate held_out.safetensors --validate-every 100",
    "torchrun --nproc-per-node 4 --no-python -- tiebreak train job --run trained",
)
def train(
    job_directory: Path = JOB,
    run: Path = option("Directory of the run: checkpoints, log and history. A killed run carries on.", ...),
    thresholds: Path | None = option(
        "For jobs of the policy threshold: a JSON file with the threshold of each operator, in [0.25, 0.5) of the "
        "distance between numbers. [default: 0.25]"
    ),
    validate: Path | None = option(
        "Other rows (safetensors, with the fields and dtypes of the data set), to write the loss on them into the "
        "history. It is the loss that is trained: a model with dropout drops here, too, and batch norm takes the "
        "statistics of the batch.",
        metavar="FILE",
        rich_help_panel="Validation",
    ),
    validate_every: int | None = option(
        "Steps between two validations; there is one before the first step and one after the last, too. [default: as "
        "between checkpoints]",
        metavar="N",
        min=1,
        rich_help_panel="Validation",
    ),
    publish_every: int | None = network.PUBLISH_EVERY,
    *,
    computing: Computing,
    content: ContentOptions,
    json: bool = JSON,
) -> None:
    """Train a job, bit for bit as any other machine would, and write its rounding log.

    A directory that holds a run of the job already is looked over: what is damaged in it is computed again.

    Several processes that torchrun starts share every batch, and come to the same root; rank 0 writes and prints.
    """
    from roundlog.segment_audits import Publisher
    from roundlog.training import HISTORY_FILE, Trainer

    every = published_every(publish_every, computing.keep_every)
    computing.use_threads()
    with rank_group() as ranks:
        job = read_job(job_directory, computing.max_memory, computing.micro_batches, content)
        recorder = _recorder(thresholds, job) if thresholds is not None else None
        if ranks.serves(job, computing.device):
            return
        store = content.open_content(warn=output.warn) if every else None
        publisher = None
        if store is not None:
            publisher = Publisher(job.spec, run, every, store.add_file, published_job(job_directory, store))
        started = time.monotonic()
        with output.progress("training", job.spec.steps) as bar:
            last = Listener(bar, job.spec.steps, _publishes(publisher, job))
            validation = _validation(validate, validate_every, job, computing.max_memory, last)
            chosen_options = ranks.options(computing.run_options(last, last.resumes, validation))
            result = Trainer(job, run, chosen_options, recorder=recorder).run(look_over=True)
        fetched_bytes = ranks.dismiss(job)
    published = None
    if store is not None and publisher is not None:
        publisher.publish(result.mended)
        published = store.add_directory(result.log_dir)
    facts = {
        "checkpoint_root": result.checkpoint_root,
        "final_state_root": result.state_roots[-1],
        "steps": job.spec.steps,
        "ranks": ranks.size,
        "checkpoints": len(result.state_roots),
        "fetched_data_bytes": fetched_bytes,
        "resumed_from": last.resumed_from,
        "loss": last.loss,
        "validation_loss": last.validation,
        "seconds": round(time.monotonic() - started, 3),
        "final_state": result.final_state,
        "log": result.log_dir,
        "log_bytes": result.log_bytes,
        "published_log": published,
        "mended_intervals": result.mended,
        "history": run / HISTORY_FILE,
        "history_problem": result.history_problem,
    }
    output.show_result(json, facts, "Trained")


def _publishes(publisher: Publisher | None, job: Job) -> Callable[[int], None]:
    """Return a listener of every executed step, which publishes the checkpoints that were made before it. A store
    that cannot be reached stops no training, since all is published again at its end."""
    from tiebreak.store import StoreError

    def publish(step: int) -> None:
        if publisher is None or step % job.spec.interval or publisher.due() == publisher.told:
            return
        try:
            publisher.publish()
        except (StoreError, OSError) as error:
            output.warn(f"a checkpoint is not published yet: {error}")

    return publish


def _validation(path: Path | None, every: int | None, job: Job, max_memory: int, last: Listener) -> Validation | None:
    if path is None:
        if every is not None:
            raise WrongUsage("--validate-every says how often, and not on what: name the rows with --validate.")
        return None
    from roundlog.training import Validation, draws_numbers, read_validation_rows

    rows = read_validation_rows(path, job, max_memory)
    made = Validation(job, rows, every or job.spec.interval, last.validated)
    if draws_numbers(job.program):
        output.warn(
            "this job's loss depends on random numbers (dropout): the validation loss is the one with dropout on, "
            "which is above that of the model alone"
        )
    given = len(next(iter(rows.values())))
    if made.rows < given:
        output.warn(f"{made.rows} of the {given} rows of {path} are whole batches: the others are left out")
    return made


def _recorder(path: Path, job: Job) -> RecordingRounding:
    """Return the trainer's rounding by the thresholds in a file."""
    from roundlog.rounding.ovt import MAX_THRESHOLDS_BYTES, ThresholdError, ThresholdRecorder, Thresholds
    from roundlog.storage import open_regular

    if not job.spec.log_decides:
        raise CommandError("this job rounds by the policy certified, which has no thresholds: leave --thresholds away.")
    try:
        with open_regular(path) as file:
            thresholds = Thresholds.from_json(file.read(MAX_THRESHOLDS_BYTES + 1))
    except OSError as error:
        raise CommandError(f"{path} cannot be read ({error.strerror}): check the path.") from error
    except ThresholdError as error:
        raise CommandError(f"{path} holds no thresholds: {error}; correct it, or leave --thresholds away.") from error
    return ThresholdRecorder(thresholds)
