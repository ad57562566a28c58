"""Options for the workers of an audit, and `tiebreak audit` by many of them."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiebreak import quantities
from tiebreak.cli import option_groups, output
from tiebreak.cli.audit_output import about_data, about_states, claimed_states
from tiebreak.cli.failures import ANSWER_IS_NO, CommandError, WrongUsage
from tiebreak.cli.job_files import fetched
from tiebreak.cli.network import ContentOptions
from tiebreak.cli.option_groups import panel

if TYPE_CHECKING:
    from roundlog.segment_audits import Listing, Look, SegmentAudit, Sharing, StateSource
    from roundlog.training import Job

    from tiebreak.cli.audit_output import States

_option = panel("Workers")
_DEFAULT_SHARE: Any = "all"
_MOST_SHOWN = 20
_QUIET = 60.0
"""Seconds without anything new after which people are told that a followed run may have been given up."""
_CLUSTER_REPEATS = 0.05
"""Share of the right answers that is repeated on a cluster, if the user says nothing: its machines are many."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The workers of an audit."""

    workers: Annotated[
        int | None,
        _option(
            min=1,
            metavar="N",
            help="Audit by N workers at a time, from the checkpoints that the trainer has published: processes of this "
            "machine, or actors of the cluster (default there: one for each processor).",
            show_default=False,
        ),
    ] = None
    cluster: Annotated[
        str | None,
        _option(metavar="ADDRESS", help="Ray cluster of the workers, e.g. ray://head:10001.", show_default=False),
    ] = None
    repeat_share: Annotated[
        float | None,
        _option(
            parser=quantities.share,
            metavar="SHARE|all",
            help="Share of the right answers that a second worker repeats, drawn in secret. A wrong interval is "
            "repeated here in any case (default: 0.05 with a cluster, else 0).",
            show_default=False,
        ),
    ] = None
    share: Annotated[
        float,
        _option(
            "--share",
            parser=quantities.share,
            metavar="SHARE|all",
            help="Share of the intervals to audit, drawn in secret. A wrong interval that is not drawn goes unnoticed; "
            "nothing is attested on a chain.",
        ),
    ] = _DEFAULT_SHARE

    @property
    def are_wanted(self) -> bool:
        """Whether an audit by workers is asked for. Raises WrongUsage for a share without them."""
        wanted = self.workers is not None or self.cluster is not None
        if not wanted and (self.share < 1 or self.repeat_share is not None):
            raise WrongUsage("--share and --repeat-share are about audits by workers: add --workers N.")
        self.require_some()
        return wanted

    def require_some(self) -> None:
        """Raises WrongUsage for a share that audits nothing."""
        if self.share == 0:
            raise WrongUsage("a share of 0 audits nothing: give a share above it.")

    def sharing(self, threads: int | None) -> Sharing:
        """Sharing of the work. threads: of each worker's kernels; None for as many as leave room for all.

        Raises ClusterError."""
        from os import cpu_count

        from roundlog.segment_audits import Sharing, process_workers

        if self.cluster is None:
            workers = self.workers or 1
            each = threads or max(1, (cpu_count() or 1) // workers)
            repeats = self.repeat_share or 0.0
            return Sharing(
                make=process_workers(each), workers=workers, repeat_share=repeats, share=self.share, common_disk=True
            )
        from roundlog.segment_audits import cluster_workers, connect_cluster

        processors = connect_cluster(self.cluster)
        each = threads or 1
        repeats = _CLUSTER_REPEATS if self.repeat_share is None else self.repeat_share
        workers = self.workers or max(1, processors // each)
        return Sharing(make=cluster_workers(each), workers=workers, repeat_share=repeats, share=self.share)


def audit_by_workers(
    job_directory: Path,
    job: Job,
    run: Path,
    claim: str | None,
    micro_batches: int,
    follow: bool,
    workers: WorkerOptions,
    computing: option_groups.Computing,
    content: ContentOptions,
    json: bool,
) -> None:
    """Audits the claim of a run directory, or of a log's content address, and prints what was found. follow: the run
    may still be under way. Exits as `tiebreak audit` does."""
    from roundlog.segment_audits import Reports, audit_by_segments

    if claim is None:
        raise WrongUsage("workers start from claimed checkpoints: name the run that they are of with --claim.")
    if follow and workers.share < 1:
        raise WrongUsage("a share can only be drawn of a run that has ended: leave --follow or --share away.")
    look, source = _claimed(job_directory, job, run, claim, follow, micro_batches, computing, content, workers)
    sharing = workers.sharing(computing.threads)
    started = time.monotonic()
    with output.progress("auditing intervals", job.spec.intervals) as bar:
        reports = Reports(progress=lambda done, total: bar.done(done), event=output.warn)
        chosen = computing.run_options(micro_batches)
        found = audit_by_segments(job, look, source, run, sharing, chosen, reports=reports)
    claimed = look()
    states = claimed_states(Path(claim), job, claimed.roots) if Path(claim).is_dir() and claimed.complete else None
    if json:
        output.show_json(plain_audit(job, found, states) | {"seconds": round(time.monotonic() - started, 3)})
    else:
        show_audit(job, found, sharing, states)
    if found.wrong is not None or (states is not None and states.wrong):
        raise typer.Exit(ANSWER_IS_NO)


def _claimed(
    job_directory: Path,
    job: Job,
    run: Path,
    claim: str,
    follow: bool,
    micro_batches: int,
    computing: option_groups.Computing,
    content: ContentOptions,
    workers: WorkerOptions,
) -> tuple[Look, StateSource]:
    """The claim, and the source from which workers get it. Raises CommandError, StoreError."""
    from roundlog.segment_audits import listing_of_run, settled
    from roundlog.storage import StorageError
    from roundlog.training import JobLimits

    from tiebreak.cli.job_files import check_roots, read_claim
    from tiebreak.segment_audits.stored_jobs import LocalStates

    limits = JobLimits(memory_bytes=computing.max_memory, micro_batches=micro_batches)
    directory = Path(claim).resolve()
    if directory.is_dir():
        source = LocalStates(job_directory.resolve(), limits, content.places())
        if follow:
            new = _Novelty(directory)

            def look() -> Listing:
                try:
                    listing = listing_of_run(directory, job.spec)
                    new.notice(listing)
                    return listing
                except StorageError as error:
                    raise CommandError(
                        f"{error}: name the run of this job, or have it carried on by `tiebreak train`, which mends it."
                    ) from error

            return look, source
        roots = read_claim(claim)
        assert isinstance(roots, list), "a directory has no 64 hex digits"
        check_roots(Path(claim), roots, job)
        return settled(listing_of_run(directory, job.spec)), source
    if follow:
        raise WrongUsage("a run is followed in its directory: name that with --claim, or leave --follow away.")
    from tiebreak.store.dagpb import Cid
    from tiebreak.store.store_errors import InvalidCid

    try:
        Cid.parse(claim)
    except InvalidCid:
        raise WrongUsage(
            f"{claim[:80]} is neither a run directory nor the content address of a published log: workers start from "
            "claimed checkpoints, which a root alone does not bring."
        ) from None
    return _from_store(job_directory, job, run, claim, limits, content, workers)


class _Novelty:
    """Time since a followed run had something new. A run that nobody carries on any more looks like a slow one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen, self._since, self._told = 0, time.monotonic(), False

    def notice(self, listing: Listing) -> None:
        """Takes up what is on record, and warns once if this has been all of a run under way for long."""
        intervals = len(listing.roots)
        if intervals != self._seen or listing.complete:
            self._seen, self._since, self._told = intervals, time.monotonic(), False
        elif not self._told and time.monotonic() - self._since > _QUIET:
            self._told = True
            output.warn(
                f"{self._directory} has had no new interval for {_QUIET:g} seconds ({intervals} so far): if nobody "
                "trains there any more, have it carried on, or end this audit, which the same command carries on"
            )


def _from_store(
    job_directory: Path, job: Job, run: Path, claim: str, limits: Any, content: ContentOptions, workers: WorkerOptions
) -> tuple[Look, StateSource]:
    from roundlog.segment_audits import CHECKPOINTS_FILE, MAX_LIST_BYTES, ListingError, read_listing, settled

    from tiebreak.segment_audits.stored_jobs import Stores, addresses_of, lies_elsewhere

    run.mkdir(parents=True, exist_ok=True)
    store, log = content.open_content(), run / "claimed-log"
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
    if workers.cluster is not None:
        without_data = lies_elsewhere(job_directory)
        job_cid = addresses_of(job_directory).job if without_data else store.add_directory(job_directory)
    return settled(listing), Stores(
        locations=content.places(), job_cid=job_cid, job_dir=job_directory.resolve(), limits=limits
    )


def plain_audit(job: Job, found: SegmentAudit, states: States | None) -> dict[str, object]:
    """The result for programs."""
    wrong = found.wrong
    return {
        "checkpoint_root": found.checkpoint_root if found.is_whole else None,
        "agrees": False if wrong is not None else True if found.is_whole else None,
        "wrong_interval": None if wrong is None else wrong.interval,
        "wrong_root": None if wrong is None else wrong.root,
        "stopped": None if wrong is None else wrong.stopped,
        "challenge_root": found.checkpoint_root if wrong is not None and _has_ended(job, found) else None,
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
    """Prints the result for people."""
    spec, intervals = job.spec, job.spec.intervals
    facts: dict[str, object] = {}
    if found.wrong is not None:
        wrong, first = found.wrong, found.wrong.interval * spec.interval
        came = f"stops ({wrong.stopped})" if wrong.stopped else f"comes to 0x{wrong.root.hex()}"
        facts["claim"] = "WRONG: an interval does not come to the root claimed after it"
        facts["wrong"] = (
            f"interval {wrong.interval + 1} of {intervals}: steps {first} to {first + spec.interval - 1}; from the "
            f"state claimed before it, it {came}"
        )
        facts["a challenge wins with"] = (
            f"0x{found.checkpoint_root.hex()}" if _has_ended(job, found) else "a root known when the run has ended"
        )
    elif found.is_whole:
        facts["checkpoint root"] = found.checkpoint_root
        facts["claim"] = f"right: each of {intervals} intervals comes from the root before it to the root after it"
    else:
        facts["claim"] = f"nothing wrong in {len(found.right)} of {intervals} intervals, drawn in secret"
        facts["caught, at least"] = ", ".join(
            f"{100 * (1 - found.unnoticed(n)):.3g} % of the time {n} wrong" for n in _examples(intervals)
        )
        facts["cannot tell"] = (
            "about any other interval: a wrong one that was not drawn passes, so rely on a whole audit"
        )
    if states is not None:
        facts["claimed states"] = about_states(states)
    facts |= about_data(job, _fetched(job, found))
    if found.wrong is None and sharing.repeat_share < 1:
        facts["believed"] = f"of one worker alone: {100 * (1 - sharing.repeat_share):g} % of the answers"
    if found.distrusted:
        facts["workers not believed"] = "; ".join(found.distrusted)
    output.show_facts("Audited", facts)
    for text in [*(states.wrong if states is not None else []), *found.unusable][:_MOST_SHOWN]:
        output.show_line(text)


def _has_ended(job: Job, found: SegmentAudit) -> bool:
    """Whether all of the run was published when the audit ended; a run that is followed may be wrong before."""
    return len(found.state_roots) == job.spec.intervals


def _examples(intervals: int) -> list[int]:
    """Numbers of wrong intervals for which the chance to catch them is told."""
    return sorted({1, max(1, intervals // 10), max(1, intervals // 2)})
