"""`tiebreak train` and `tiebreak audit`: reproducible training in directories, without any chain."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tiebreak.cli import network, output
from tiebreak.cli.audit_output import about_data, claimed_states, has_failure, plain_verdict, show_verdict
from tiebreak.cli.failures import ANSWER_IS_NO, CommandError, WrongUsage
from tiebreak.cli.job_files import check_roots, published_job, read_claim, read_job
from tiebreak.cli.network import ContentOptions, published_every
from tiebreak.cli.option_groups import JOB, JSON, Computing, argument, command, option
from tiebreak.cli.output import Listener
from tiebreak.cli.published_audit import PublishedOptions, audit_published, is_published
from tiebreak.cli.ranks import rank_group, refuse_ranks
from tiebreak.cli.segment_audits import audit_by_workers

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
    from roundlog.training import Trainer

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
    history = run / _history_name()
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
        "history": history,
        "history_problem": result.history_problem,
    }
    problem = result.history_problem
    shown = {
        "checkpoint root": result.checkpoint_root,
        "steps": f"{job.spec.steps}, a checkpoint every {job.spec.interval}",
        "ranks": ranks.size if ranks.size > 1 else None,
        **about_data(job, fetched_bytes),
        "loss": f"{last.loss:.4f}" if last.loss is not None else None,
        "validation loss": f"{last.validation:.4f}" if last.validation is not None else None,
        "final state root": result.state_roots[-1],
        "final state": result.final_state,
        "mended": f"{len(result.mended)} damaged intervals, computed again" if result.mended else None,
        "log": f"{result.log_dir} ({output.size(result.log_bytes)})",
        "published as": published,
        "history": history if problem is None else f"INCOMPLETE: {problem}; the run itself is whole",
    }
    output.show_result(json, facts, "Trained", shown)


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


def _history_name() -> str:
    from roundlog.training import HISTORY_FILE

    return HISTORY_FILE


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


@command(
    "audit",
    "tiebreak audit job --run audited --claim 0x...",
    "tiebreak audit job --run audited --claim trained --log trained/log",
    "tiebreak audit job --run audited --claim trained --workers 2",
    "tiebreak audit bafy... --share 1 --store gateway+https://gateway.example",
)
def audit(
    job: str = argument(
        "JOB|ADDRESS",
        "Directory of a job. Or the content address of a published log, the number of a posted job, or a file with the "
        "result of an audit: their run is fetched.",
    ),
    *,
    options: PublishedOptions,
    json: bool = JSON,
) -> None:
    """Repeat a training and check what the trainer has written and claimed.

    The claim is right if its root is the one that this audit comes to without relying on the log. A wrong log accuses
    nobody of a wrong claim.

    Of a job that was fetched without its data, the blocks that are used are fetched, each checked, and counted.

    Of a run directory, every checkpoint and the final state that it holds are checked as well. Ranks that torchrun
    starts can audit together, whatever number of them has trained.

    Of a content address, job and claimed roots are fetched, and blocks of data and states as far as the audited --share
    needs them. Nothing stays but the --result: what was audited, what was found, and the claimed roots. --claim can
    name the root that is claimed, or, beside a job's address, the log or the receipt.

    With --workers the intervals are audited side by side, from the claimed checkpoints, which are checked first; a log
    is not looked at. One wrong interval ends it: any one, not always the first.

    Exit code 0 if claim, states and log, as far as they were given, are right; 3 if the claim is wrong, a state is not
    the claimed one, or the log has wrong entries, lacks some, or is damaged or absent in whole or in part.
    """
    from roundlog.training import audit as audit_claim

    options.use_threads()
    run, log, claim = options.run, options.log, options.claim
    if is_published(job):
        refuse_ranks("tiebreak audit ADDRESS")
        if run is not None or log is not None:
            raise WrongUsage(
                "a published run is audited in a temporary directory, without its log: leave --run and --log away, "
                "or fetch the job first (`tiebreak job fetch`)."
            )
        audit_published(job, options, json)
        return
    if run is None:
        raise WrongUsage("the audit of a job in a directory needs another one, which can carry on: name it with --run.")
    if options.are_wanted:
        refuse_ranks("tiebreak audit --workers")
        if log is not None:
            raise WrongUsage("workers look at no log: check it by an audit without --workers, or leave --log away.")
        audit_by_workers(Path(job), run, options, json)
        return
    with rank_group() as ranks:
        # Only the rank that leads needs what the trainer has written.
        claimed = read_claim(claim) if claim is not None and ranks.leads else None
        if log is not None and ranks.leads and not log.is_dir():
            raise CommandError(f"there is no directory of logs {log}: name the `log` directory of the trainer's run.")
        made = read_job(Path(job), options.max_memory, options.micro_batches, options)
        if claim is not None and isinstance(claimed, list):
            check_roots(Path(claim), claimed, made)
        if ranks.serves(made, options.device):
            return
        started = time.monotonic()
        with output.progress("auditing", made.spec.steps) as bar:
            last = Listener(bar, made.spec.steps)
            verdict = audit_claim(
                made,
                run,
                ranks.options(options.run_options(last, last.resumes)),
                claim=claimed,
                log_dir=log,
                verify_log=options.verify_log,
                on_distrust=lambda why: output.warn(f"auditing again without the log: {why}"),
            )
        fetched_bytes = ranks.dismiss(made)
    states = claimed_states(Path(claim), made, claimed) if claim is not None and isinstance(claimed, list) else None
    if json:
        seconds = round(time.monotonic() - started, 3)
        run_facts = {"fetched_data_bytes": fetched_bytes, "resumed_from": last.resumed_from, "seconds": seconds}
        output.show_json(plain_verdict(made, verdict, states) | run_facts)
    else:
        share = options.verify_log
        show_verdict(made, verdict, states, fetched=fetched_bytes, has_claim=claimed is not None, share=share)
    if has_failure(verdict, states):
        raise typer.Exit(ANSWER_IS_NO)
