"""`tiebreak audit`: of a job in a directory, by this process, by ranks or by many workers; and of a published run by a
stranger, in a temporary directory that ends with it, however that ends."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

import typer

from tiebreak import quantities
from tiebreak.cli import output
from tiebreak.cli.failures import ANSWER_IS_NO, CommandError, WrongUsage
from tiebreak.cli.job_files import as_root, check_roots, read_claim, read_job
from tiebreak.cli.network import ContentOptions, ContractOptions
from tiebreak.cli.option_groups import JSON, VERIFY_LOG, Computing, argument, command, option
from tiebreak.cli.output import Listener, size
from tiebreak.cli.ranks import rank_group, refuse_ranks

if TYPE_CHECKING:
    from roundlog.segment_audits import SegmentAudit, Sharing
    from roundlog.spec import TrainingSpec
    from roundlog.training import Job, Receipt, Verdict

    from tiebreak.segment_audits import Whereabouts
    from tiebreak.store.store import Store

_SHOWN_FINDINGS = 20


@dataclass(frozen=True, slots=True)
class States:
    """The states in a claimed run directory, held against the claim."""

    has_final: bool
    wrong: list[str]
    """One sentence for each file that is not the claimed state."""


def claimed_states(directory: Path, job: Job, roots: Sequence[bytes]) -> States:
    """Check every state in a run directory against the state roots that it claims, one an interval."""
    from roundlog.training import checkpoint_path, wrong_checkpoints

    wrong = [
        f"{path} is not the claimed state: {why}; copy the file again, or run `tiebreak train` in {directory}, which "
        "mends it"
        for path, why in wrong_checkpoints(directory, job, roots)
    ]
    return States(checkpoint_path(directory, job.spec.steps).exists(), wrong)


def plain_verdict(job: Job, verdict: Verdict, states: States | None) -> dict[str, object]:
    """Return the verdict for programs."""
    return {
        "checkpoint_root": verdict.checkpoint_root,
        "final_state_root": verdict.state_roots[-1],
        "agrees": verdict.right,
        "first_wrong_interval": verdict.first_wrong,
        "log": verdict.log.value,
        "findings": [
            {
                "step": finding.step,
                "operator": finding.operator,
                "described": job.program.describe(finding.operator),
                "element": finding.element,
                "kind": finding.kind.value,
                "message": finding.message,
            }
            for finding in verdict.findings
        ],
        "unreadable": verdict.unreadable,
        "has_final_state": states.has_final if states is not None else None,
        "wrong_states": states.wrong if states is not None else [],
    }


def show_verdict(
    job: Job, verdict: Verdict, states: States | None, *, fetched: int | None, has_claim: bool, share: float
) -> None:
    """Print the verdict for people. fetched: as of `about_data`. share: of the log's decisions that were to be
    verified."""
    unread, wrong, first = len(verdict.unreadable), verdict.first_wrong, ""
    if wrong is not None:
        steps = range(wrong * job.spec.interval, (wrong + 1) * job.spec.interval)
        first = f"checkpoint {wrong + 1} of {job.spec.intervals}: steps {steps[0]} to {steps[-1]}"
    facts = {
        "checkpoint root": verdict.checkpoint_root,
        "final state root": verdict.state_roots[-1],
        **about_data(job, fetched),
        "claim": _claim(verdict) if has_claim else None,
        "first wrong": first or None,
        "claimed states": about_states(states) if states is not None else None,
        "log": _log(verdict, share),
        "logs not used": f"{unread}, in whole or in part; audited without: to check them, copy them again and audit in "
        "an empty directory"
        if unread
        else None,
    }
    output.show_facts("Audited", facts)
    for text in [*(states.wrong if states is not None else []), *verdict.unreadable][:_SHOWN_FINDINGS]:
        output.show_line(text)
    if verdict.findings:
        rows = [
            [one.step, job.program.describe(one.operator), one.element, one.kind.value, one.message]
            for one in verdict.findings[:_SHOWN_FINDINGS]
        ]
        output.show_table("Wrong entries of the log", ["step", "operator", "element", "kind", "what is wrong"], rows)
    for kind, listed in (("findings", verdict.findings), ("logs not used", verdict.unreadable)):
        if len(listed) > _SHOWN_FINDINGS:
            output.show_line(f"... and {len(listed) - _SHOWN_FINDINGS} more {kind}; --json lists all of them.")


def _claim(verdict: Verdict) -> str:
    from roundlog.training import LogStanding

    if verdict.right is None:
        return "undecided: under this job's rounding policy the log decides, and this one cannot be used in whole"
    if not verdict.right:
        return "WRONG: another root"
    if verdict.log is LogStanding.SAMPLED:
        return "the same root, if the part of the log that was not verified is right"
    return "right: the same root"


def about_states(states: States) -> str:
    """Return the verdict on the states of a claimed run, in one clause."""
    if states.wrong:
        return f"WRONG: {len(states.wrong)} files are not the states that are claimed"
    if not states.has_final:
        return "the final state is not there, so that only its root was compared"
    return "right: every state that is there, and the final one, has the claimed root"


def _log(verdict: Verdict, share: float) -> str | None:
    """Return the worth of the log, in one clause; None if there was none."""
    from roundlog.training import LogStanding

    return {
        LogStanding.RIGHT: "right: no wrong entry, and none is missing",
        LogStanding.SAMPLED: f"no wrong entry found in a sample of {100 * share:g} %; the rest was believed",
        LogStanding.WRONG: f"WRONG: {len(verdict.findings)} wrong entries; nothing else was concluded from them",
        LogStanding.UNUSABLE: "DAMAGED or absent, in whole or in part: it says nothing",
    }.get(verdict.log)


def about_data(job: Job, count: int | None) -> dict[str, object]:
    """Return the fact for people that `count` bytes of a job's data were fetched; None: they lie in its directory."""
    if count is None:
        return {}
    whole = sum(field.nbytes for field in job.dataset.values())
    return {"data fetched": f"{size(count)} of {size(whole)}"}


_CLUSTER_REPEATS = 0.05
"""Share of the right answers that is repeated on a cluster, if the user says nothing: its machines are many."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The workers of an audit."""

    panel: ClassVar = "Workers"
    workers: int | None = option(
        "Audit by N workers at a time, from the checkpoints that were published: processes of this machine, "
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
        from roundlog.segment_audits import Sharing, process_workers

        if self.cluster is None:
            workers = self.workers or 1
            make = process_workers(threads or max(1, (os.cpu_count() or 1) // workers))
            repeats = self.repeat_share or 0.0
        else:
            from roundlog.segment_audits import cluster_workers, connect_cluster

            processors = connect_cluster(self.cluster)
            workers, make = self.workers or max(1, processors // (threads or 1)), cluster_workers(threads or 1)
            repeats = _CLUSTER_REPEATS if self.repeat_share is None else self.repeat_share
        own = self.cluster is None
        return Sharing(make=make, workers=workers, repeat_share=repeats, share=self.share, common_disk=own)


@dataclass(frozen=True, kw_only=True)
class AuditOptions(WorkerOptions, Computing, ContentOptions):
    """Options of the audit of a job in a directory, or of a published run by workers."""

    panel: ClassVar = "Options"
    run: Path | None = option(
        "Directory of the audit, in which a killed one carries on. Of a published run all that is fetched lies there "
        "(default: a temporary one)."
    )
    log: Path | None = option("The trainer's log, to check it as well; the claim needs none.")
    verify_log: float = VERIFY_LOG
    claim: str | None = option(
        "The trainer's claim: its checkpoint root, or its run directory; then the first wrong checkpoint is named.",
        metavar="ROOT|RUN",
    )


def plain_audit(job: Job, found: SegmentAudit) -> dict[str, object]:
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
        "unusable_states": found.unusable,
        "distrusted_workers": found.distrusted,
        "lost_workers": found.lost,
        "busy_seconds": round(found.busy_seconds, 3),
        "fetched_data_bytes": found.fetched,
    }


def show_audit(job: Job, found: SegmentAudit, sharing: Sharing) -> None:
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
    facts |= about_data(job, found.fetched)
    if wrong is None and sharing.repeat_share < 1:
        facts["believed"] = f"of one worker alone: {100 * (1 - sharing.repeat_share):g} % of the answers"
    facts["workers not believed"] = "; ".join(found.distrusted) or None
    output.show_facts("Audited", facts)
    for text in found.unusable[:_SHOWN_FINDINGS]:
        output.show_line(text)


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ATTEMPTS = 3


@contextmanager
def private_room(prefix: str, place: Path | None) -> Iterator[tuple[Path, threading.Event]]:
    """Make a directory below TMPDIR that nobody else can read, until the block ends: by return, error, Ctrl-C, SIGTERM
    or SIGHUP, which all become KeyboardInterrupt. Temporary files of this process and of those that it starts lie in
    it, too, so that one that was killed leaves nothing behind. place: the directory that is given in its place, which
    stays. Gives an event, too, which a signal sets, for threads that would be waited for."""
    stop = threading.Event()

    def interrupted(number: int, frame: FrameType | None) -> None:
        stop.set()
        raise KeyboardInterrupt

    with _handled(interrupted):
        path = Path(tempfile.mkdtemp(prefix=prefix))
        variable, directory = os.environ.get("TMPDIR"), tempfile.tempdir
        os.environ["TMPDIR"] = tempfile.tempdir = str(path)
        try:
            if place is not None:
                place.mkdir(parents=True, exist_ok=True)
            yield place or path, stop
        finally:
            # A second Ctrl-C must not end the removal.
            with _handled(signal.SIG_IGN):
                tempfile.tempdir = directory
                if variable is None:
                    del os.environ["TMPDIR"]
                else:
                    os.environ["TMPDIR"] = variable
                for _ in range(_ATTEMPTS):  # what a dying worker still writes comes in between
                    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _handled(handler: Any) -> Iterator[None]:
    """Make a block in which a handler answers the signals, but for those that this process is to ignore (nohup)."""
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        kept = {number: signal.getsignal(number) for number in _SIGNALS}
        before = {number: one for number, one in kept.items() if one is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, one in before.items():
            signal.signal(number, one)


@dataclass(frozen=True, kw_only=True)
class PublishedOptions(AuditOptions, ContractOptions):
    """Options of an audit, with limits of that of a published run, and its result; and the contract, for the number of
    a posted job."""

    panel: ClassVar = "Of a published run"
    result: Path | None = option(
        "File for what was found, which others can check (default: audit-RUN.json here).", metavar="FILE"
    )
    max_size: int = option(
        "End if the temporary files take more than this, together.", "16GiB", "SIZE", parser=quantities.size
    )


def is_published(text: str) -> bool:
    """Return whether an argument of `audit` names a published run: the content address of a log, the number of a posted
    job, or a file with the result of an audit, and no directory."""
    from tiebreak.segment_audits import is_address

    path = Path(text)
    return not path.is_dir() and (is_address(text) or _is_number(text) or path.is_file())


def audit_published(address: str, options: PublishedOptions, json: bool) -> None:
    """Fetch a run and its job, audit the wanted share of it, and write down what was found. All else that it needs
    lies in the directory of the audit. Exit as `tiebreak audit` does."""
    from roundlog.segment_audits import Reports, audit_by_segments

    from tiebreak.segment_audits import Stores, fetch_run, read_job
    from tiebreak.store.staging import size_of
    from tiebreak.store.store_errors import NoSpace

    options.require_some()
    require_place_for(options.result)
    require_places(options, address)
    started = time.monotonic()
    most = options.max_size
    with private_room("tiebreak-audit-", options.run) as (room, stop):
        limits, places = options.limits, options.places()
        store = options.open_content(stop=stop)
        where = _find(store, address, room, options)
        directory, listing = fetch_run(store, where, room, limits, warn=output.warn, max_bytes=most)
        job = read_job(directory, limits, lambda: store)
        job_cid = where.job if options.cluster is not None else ""
        source = Stores(locations=places, job_cid=job_cid, job_dir=directory, limits=limits)
        sharing = options.sharing(options.threads)
        with output.progress("auditing intervals", job.spec.intervals) as bar:

            def progress(done: int, total: int) -> None:
                bar.done(done)
                if (used := size_of(room)) > most:
                    raise NoSpace(f"the temporary files take {used} bytes, and {most} are allowed: raise --max-size.")

            reports = Reports(progress=progress, event=output.warn)
            audited, chosen = room / "audited", options.run_options()
            found = audit_by_segments(job, listing, source, audited, sharing, chosen, reports=reports)
        file = options.result or free_name(job.spec.run_id.hex()[:8])
        _result(where, job.spec, listing.roots, found).write(file)
        if json:
            facts = {"job": where.job, "claim_address": where.claim, "result": file}
            seconds = round(time.monotonic() - started, 3)
            output.show_json(plain_audit(job, found) | facts | {"seconds": seconds})
        else:
            show_audit(job, found, sharing)
            output.show_line(f"Result: {file}, which `tiebreak audit {file}` and `tiebreak verify` check.")
    if found.wrong is not None:
        raise typer.Exit(ANSWER_IS_NO)


def require_places(content: ContentOptions, address: str) -> None:
    """Require stores that can be there; none is made. Raises CommandError, WrongUsage, StoreError."""
    from tiebreak.store import is_folder

    folders = [Path(place) for place in content.places() if is_folder(place)]
    absent = next((folder for folder in folders if not folder.is_dir()), None)
    if absent is not None and content.store is None:
        raise WrongUsage(
            f"no content store is named to fetch {address[:100]} from: add --store with a folder, with "
            "http://127.0.0.1:5001 for Kubo, or with gateway+https://... for a gateway."
        )
    if absent is not None:
        raise CommandError(f"there is no folder {absent} to fetch from: check --store.")


def require_place_for(result: Path | None) -> None:
    """Refuse a place where the result cannot be written, or would replace a file. Raises CommandError."""
    folder = Path() if result is None else result.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise CommandError(f"the result cannot be written to {folder.resolve()}: name a file elsewhere with --result.")
    if result is not None and result.exists():
        raise CommandError(f"{result} exists already, and a result is never replaced: choose another name.")


def free_name(run: str) -> Path:
    """Return a name for the result of the audit of a run, which nothing has yet."""
    names = (Path(f"audit-{run}{f'-{number}' if number else ''}.json") for number in range(1 << 20))
    return next(name for name in names if not name.exists())


def _find(store: Store, address: str, room: Path, options: PublishedOptions) -> Whereabouts:
    from tiebreak.segment_audits import find_run

    if _is_number(address) and not Path(address).is_file():
        return _posted(int(address), options)
    root = as_root(options.claim) if options.claim is not None else None
    if options.claim is not None and root is None:
        raise WrongUsage("a published run says itself what is claimed: leave --claim away, or give the root to expect.")
    found = find_run(store, address, room)
    if root is not None and found.root is not None and found.root != root:
        raise WrongUsage(
            f"{address[:100]} is about the checkpoint root 0x{found.root.hex()}, and not the one of --claim, "
            f"0x{root.hex()}: leave --claim away, or get a result about that root."
        )
    return replace(found, root=root or found.root)


def _posted(number: int, options: PublishedOptions) -> Whereabouts:
    """Return where the chain says that a job and its claim lie, and what they have to be. Raises CommandError,
    ChainError."""
    from tiebreak.cli.summary_text import find_job
    from tiebreak.segment_audits import Whereabouts, is_address

    if options.claim is not None:
        raise WrongUsage("the claim about a posted job is on the chain: leave --claim away.")
    posted = find_job(options.open_game(), number)
    if not posted.claim.log_cid:
        raise CommandError(f"nothing is claimed of job {number}, or sealed: ask again when `tiebreak status` shows it.")
    if not (is_address(posted.job_cid) and is_address(posted.claim.log_cid)):
        raise CommandError(f"job {number} or the claim about it names no content addresses: do not rely on either.")
    return Whereabouts(
        job=posted.job_cid,
        claim=posted.claim.log_cid,
        root=posted.claim.checkpoint_root,
        spec=posted.spec.training,
    )


def _result(where: Whereabouts, spec: TrainingSpec, roots: Sequence[bytes], found: SegmentAudit) -> Receipt:
    """Return the findings, as a receipt of the claimed roots."""
    from roundlog.signed_json import printable
    from roundlog.training import AuditRecord, Receipt, interval_ranges

    wrong = found.wrong
    if wrong is not None and wrong.stopped is not None:
        wrong = replace(wrong, stopped=printable(wrong.stopped))
    audit = AuditRecord(
        job=where.job,
        claim=where.claim,
        parts=found.units,
        drawn=found.drawn,
        right=interval_ranges(found.right),
        wrong=wrong,
    )
    return Receipt.of(spec, roots, version("tiebreak")).about(audit)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


@command(
    "audit",
    "tiebreak audit job --run audited --claim 0x...",
    "tiebreak audit job --run audited --claim trained --log trained/log",
    "tiebreak audit bafy... --share 0.1 --store gateway+https://gateway.example",
    "tiebreak audit bafy... --run audited --workers 4 --store http://127.0.0.1:5001",
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
    needs them. Intervals are audited side by side by --workers, from the published checkpoints, which are checked
    first; a log is not looked at. One wrong interval ends it: any one, not always the first. Without --run only
    the --result stays: what was audited, what was found, and the claimed roots. --claim can name the root that is
    claimed.

    Exit code 0 if claim, states and log, as far as they were given, are right; 3 if the claim is wrong, a state is not
    the claimed one, or the log has wrong entries, lacks some, or is damaged or absent in whole or in part.
    """
    from roundlog.training import LogStanding
    from roundlog.training import audit as audit_claim

    options.use_threads()
    run, log, claim = options.run, options.log, options.claim
    if is_published(job):
        refuse_ranks("tiebreak audit ADDRESS")
        if log is not None:
            raise WrongUsage(
                "a published run is audited without its log: leave --log away, or fetch the job first (`tiebreak job "
                "fetch`)."
            )
        audit_published(job, options, json)
        return
    if run is None:
        raise WrongUsage("the audit of a job in a directory needs another one, which can carry on: name it with --run.")
    if options.are_wanted:
        raise WrongUsage(
            "workers start from published checkpoints: give the address of the log in place of JOB, as `train "
            "--publish-every` prints it, or have torchrun start several processes."
        )
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
    is_log_wrong = verdict.log in (LogStanding.WRONG, LogStanding.UNUSABLE)
    if verdict.right is False or is_log_wrong or (states is not None and states.wrong):
        raise typer.Exit(ANSWER_IS_NO)
