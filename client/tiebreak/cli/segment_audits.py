"""Options for the workers of an audit, and `tiebreak audit` by many of them."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer

from tiebreak import quantities
from tiebreak.cli import output
from tiebreak.cli.audit_output import about_data, about_states, claimed_states
from tiebreak.cli.failures import ANSWER_IS_NO, CommandError, WrongUsage
from tiebreak.cli.job_files import check_roots, fetched, read_claim, read_job
from tiebreak.cli.network import ContentOptions
from tiebreak.cli.option_groups import VERIFY_LOG, Computing, option

if TYPE_CHECKING:
    from roundlog.segment_audits import Listing, SegmentAudit, Sharing, StateSource
    from roundlog.training import Job

    from tiebreak.cli.audit_output import States

_MOST_SHOWN = 20
_CLUSTER_REPEATS = 0.05
"""Share of the right answers that is repeated on a cluster, if the user says nothing: its machines are many."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The workers of an audit."""

    panel: ClassVar = "Workers"
    workers: int | None = option(
        "Audit by N workers at a time, from the checkpoints that the trainer has published: processes of this machine, "
        "or actors of the cluster (default there: one for each processor).",
        metavar="N",
        min=1,
    )
    cluster: str | None = option("Ray cluster of the workers, e.g. ray://head:10001.", metavar="ADDRESS")
    repeat_share: float | None = option(
        "Share of the right answers that a second worker repeats, drawn in secret. A wrong interval is repeated here "
        "in any case (default: 0.05 with a cluster, else 0).",
        metavar="SHARE|all",
        parser=quantities.share,
    )
    share: float = option(
        "Share of the intervals to audit, drawn in secret. A wrong interval that is not drawn goes unnoticed; nothing "
        "is attested on a chain.",
        "all",
        "SHARE|all",
        parser=quantities.share,
    )

    @property
    def are_wanted(self) -> bool:
        """Return whether an audit by workers is asked for. Raises WrongUsage for a share without them."""
        wanted = self.workers is not None or self.cluster is not None
        if not wanted and (self.share < 1 or self.repeat_share is not None):
            raise WrongUsage("--share and --repeat-share are about audits by workers: add --workers N.")
        self.require_some()
        return wanted

    def require_some(self) -> None:
        """Refuse a share that audits nothing. Raises WrongUsage."""
        if self.share == 0:
            raise WrongUsage("a share of 0 audits nothing: give a share above it.")

    def sharing(self, threads: int | None) -> Sharing:
        """Return how the work is shared. threads: of each worker's kernels; None for as many as leave room for all.

        Raises ClusterError."""
        from os import cpu_count

        from roundlog.segment_audits import Sharing, process_workers

        if self.cluster is None:
            workers = self.workers or 1
            make = process_workers(threads or max(1, (cpu_count() or 1) // workers))
            repeats = self.repeat_share or 0.0
        else:
            from roundlog.segment_audits import cluster_workers, connect_cluster

            processors = connect_cluster(self.cluster)
            workers, make = self.workers or max(1, processors // (threads or 1)), cluster_workers(threads or 1)
            repeats = _CLUSTER_REPEATS if self.repeat_share is None else self.repeat_share
        is_here = self.cluster is None
        return Sharing(make=make, workers=workers, repeat_share=repeats, share=self.share, common_disk=is_here)


@dataclass(frozen=True, kw_only=True)
class AuditOptions(WorkerOptions, Computing, ContentOptions):
    """Options of the audit of a job in a directory, by this process or by workers."""

    panel: ClassVar = "Options"
    run: Path | None = option("Directory of the audit of a directory's job. A killed audit carries on.")
    log: Path | None = option("The trainer's log, to check it as well; the claim needs none.")
    verify_log: float = VERIFY_LOG
    claim: str | None = option(
        "The trainer's claim: its checkpoint root, or its run directory; then the first wrong checkpoint is named. "
        "With --workers: a run directory, or the content address of a log that was published with --publish-every.",
        metavar="ROOT|RUN|CID",
    )


def audit_by_workers(job_directory: Path, run: Path, options: AuditOptions, json: bool) -> None:
    """Audit the claim of a run directory, or of a log's content address, and print what was found. Exit as
    `tiebreak audit` does."""
    from roundlog.segment_audits import Reports, audit_by_segments, settled

    job, claim = read_job(job_directory, options.max_memory, options.micro_batches, options), options.claim
    if claim is None:
        raise WrongUsage("workers start from claimed checkpoints: name the run that they are of with --claim.")
    listing, source = _claimed(job_directory, job, run, claim, options)
    sharing = options.sharing(options.threads)
    started = time.monotonic()
    with output.progress("auditing intervals", job.spec.intervals) as bar:
        reports = Reports(progress=lambda done, total: bar.done(done), event=output.warn)
        found = audit_by_segments(job, settled(listing), source, run, sharing, options.run_options(), reports=reports)
    states = claimed_states(Path(claim), job, listing.roots) if Path(claim).is_dir() else None
    if json:
        output.show_json(plain_audit(job, found, states) | {"seconds": round(time.monotonic() - started, 3)})
    else:
        show_audit(job, found, sharing, states)
    if found.wrong is not None or (states is not None and states.wrong):
        raise typer.Exit(ANSWER_IS_NO)


def _claimed(
    job_directory: Path, job: Job, run: Path, claim: str, options: AuditOptions
) -> tuple[Listing, StateSource]:
    """Return the claim, and the source from which workers get it. Raises CommandError, StoreError."""
    from roundlog.segment_audits import listing_of_run

    from tiebreak.segment_audits.stored_jobs import LocalStates

    directory = Path(claim).resolve()
    if not directory.is_dir():
        return _from_store(job_directory, job, run, claim, options)
    roots = read_claim(claim)
    assert isinstance(roots, list), "a directory has no 64 hex digits"
    check_roots(Path(claim), roots, job)
    source = LocalStates(job_directory.resolve(), options.limits, options.places())
    return listing_of_run(directory, job.spec), source


def _from_store(
    job_directory: Path, job: Job, run: Path, claim: str, options: AuditOptions
) -> tuple[Listing, StateSource]:
    from roundlog.segment_audits import CHECKPOINTS_FILE, MAX_LIST_BYTES, ListingError, read_listing

    from tiebreak.segment_audits.stored_jobs import Stores, addresses_of, lies_elsewhere
    from tiebreak.store.dagpb import Cid
    from tiebreak.store.store_errors import InvalidCid

    try:
        Cid.parse(claim)
    except InvalidCid:
        raise WrongUsage(
            f"{claim[:80]} is neither a run directory nor the content address of a published log: workers start from "
            "claimed checkpoints, which a root alone does not bring."
        ) from None
    run.mkdir(parents=True, exist_ok=True)
    store, log = options.open_content(), run / "claimed-log"
    shutil.rmtree(log, ignore_errors=True)
    # Workers look at no log: beside it, the list of checkpoints is all that is fetched.
    found = store.entries(claim)
    if CHECKPOINTS_FILE in found:
        store.get_file(found[CHECKPOINTS_FILE], log / CHECKPOINTS_FILE, max_bytes=MAX_LIST_BYTES)
    try:
        listing = read_listing(log / CHECKPOINTS_FILE, job.spec)
    except ListingError as error:
        raise CommandError(
            f"{claim} lists no checkpoints of this job ({error}): it takes a log that was published with "
            "--publish-every."
        ) from error
    if not listing.complete:
        raise CommandError(f"{claim} is the log of a run that had not ended: ask for the whole one.")
    job_cid = ""
    if options.cluster is not None:
        without_data = lies_elsewhere(job_directory)
        job_cid = addresses_of(job_directory).job if without_data else store.add_directory(job_directory)
    here = job_directory.resolve()
    return listing, Stores(locations=options.places(), job_cid=job_cid, job_dir=here, limits=options.limits)


def plain_audit(job: Job, found: SegmentAudit, states: States | None) -> dict[str, object]:
    """Return the result for programs."""
    wrong = found.wrong
    return {
        "checkpoint_root": found.checkpoint_root if found.is_whole else None,
        "agrees": False if wrong is not None else True if found.is_whole else None,
        "wrong_interval": None if wrong is None else wrong.interval,
        "wrong_root": None if wrong is None else wrong.root,
        "stopped": None if wrong is None else wrong.stopped,
        "challenge_root": found.checkpoint_root if wrong is not None else None,
        "intervals": job.spec.intervals,
        "right_intervals": len(found.right),
        "one_wrong_unnoticed": found.unnoticed(1),
        "has_final_state": states.has_final if states is not None else None,
        "wrong_states": states.wrong if states is not None else [],
        "unusable_states": found.unusable,
        "distrusted_workers": found.distrusted,
        "lost_workers": found.lost,
        "busy_seconds": round(found.busy_seconds, 3),
        "fetched_data_bytes": _fetched(job, found),
    }


def _fetched(job: Job, found: SegmentAudit) -> int | None:
    return None if fetched(job) is None else found.fetched


def show_audit(job: Job, found: SegmentAudit, sharing: Sharing, states: States | None) -> None:
    """Print the result for people."""
    intervals, wrong = job.spec.intervals, found.wrong
    facts: dict[str, object] = {}
    if wrong is not None:
        first = wrong.interval * job.spec.interval
        came = f"stops ({wrong.stopped})" if wrong.stopped else f"comes to 0x{wrong.root.hex()}"
        facts = {
            "claim": "WRONG: an interval does not come to the root claimed after it",
            "wrong": f"interval {wrong.interval + 1} of {intervals}: steps {first} to "
            f"{first + job.spec.interval - 1}; from the state claimed before it, it {came}",
            "a challenge wins with": found.checkpoint_root,
        }
    elif found.is_whole:
        facts["checkpoint root"] = found.checkpoint_root
        facts["claim"] = f"right: each of {intervals} intervals comes from the root before it to the root after it"
    else:
        # Numbers of wrong intervals for which the chance to catch them is told.
        some = sorted({1, max(1, intervals // 10), max(1, intervals // 2)})
        caught = ", ".join(f"{100 * (1 - found.unnoticed(n)):.3g} % of the time {n} wrong" for n in some)
        facts = {
            "claim": f"nothing wrong in {len(found.right)} of {intervals} intervals, drawn in secret",
            "caught, at least": caught,
            "cannot tell": "about any other interval: a wrong one that was not drawn passes, so rely on a whole audit",
        }
    facts |= {"claimed states": about_states(states) if states is not None else None}
    facts |= about_data(job, _fetched(job, found))
    if wrong is None and sharing.repeat_share < 1:
        facts["believed"] = f"of one worker alone: {100 * (1 - sharing.repeat_share):g} % of the answers"
    facts["workers not believed"] = "; ".join(found.distrusted) or None
    output.show_facts("Audited", facts)
    for text in [*(states.wrong if states is not None else []), *found.unusable][:_MOST_SHOWN]:
        output.show_line(text)
