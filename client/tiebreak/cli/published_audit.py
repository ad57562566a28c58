"""`tiebreak audit ADDRESS`: the audit of a published run by a stranger, in a temporary directory that ends with it,
however that ends. Only its result stays."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

import typer

from tiebreak import quantities
from tiebreak.cli import output
from tiebreak.cli.failures import ANSWER_IS_NO, CommandError, WrongUsage
from tiebreak.cli.network import ContentOptions, ContractOptions
from tiebreak.cli.option_groups import option
from tiebreak.cli.segment_audits import AuditOptions, plain_audit, show_audit

if TYPE_CHECKING:
    from roundlog.segment_audits import SegmentAudit
    from roundlog.training import Receipt

    from tiebreak.segment_audits.published_run import PublishedRun, Whereabouts
    from tiebreak.store.store import Store


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ATTEMPTS = 3


class PrivateRoom:
    """A directory, and the most bytes that its files may take together. `stop`: is set by a signal, for threads that
    would be waited for."""

    def __init__(self, path: Path, most: int, stop: threading.Event) -> None:
        self.path, self.most, self.stop = path, most, stop

    def require_bounded(self) -> None:
        """Refuse files that take more. Raises NoSpace. Files that vanish meanwhile are not counted."""
        from tiebreak.store.staging import size_of
        from tiebreak.store.store_errors import NoSpace

        if (used := size_of(self.path)) > self.most:
            raise NoSpace(f"the temporary files take {used} bytes, and {self.most} are allowed: raise --max-size.")


@contextmanager
def private_room(prefix: str, most: int) -> Iterator[PrivateRoom]:
    """Make a directory below TMPDIR that nobody else can read, until the block ends: by return, error, Ctrl-C, SIGTERM
    or SIGHUP, which all become KeyboardInterrupt. Temporary files of this process and of those that it starts lie in
    it, too, so that one that was killed leaves nothing behind."""

    stop = threading.Event()

    def interrupted(number: int, frame: FrameType | None) -> None:
        stop.set()
        raise KeyboardInterrupt

    with _handled(interrupted):
        path = Path(tempfile.mkdtemp(prefix=prefix))
        variable, directory = os.environ.get("TMPDIR"), tempfile.tempdir
        os.environ["TMPDIR"] = tempfile.tempdir = str(path)
        try:
            yield PrivateRoom(path, most, stop)
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
    """Return whether an argument of `audit` names a published run: a content address, the number of a posted job, or a
    file with a receipt, and no directory."""
    from tiebreak.segment_audits.published_run import is_address

    path = Path(text)
    return not path.is_dir() and (is_address(text) or _is_number(text) or path.is_file())


def audit_published(address: str, options: PublishedOptions, json: bool) -> None:
    """Fetch a run and its job, audit the wanted share of it, and write down what was found. All else that it needs
    lies in a temporary directory. Exit as `tiebreak audit` does."""
    from roundlog.segment_audits import Reports, audit_by_segments, settled

    from tiebreak.segment_audits.published_run import fetch
    from tiebreak.segment_audits.stored_jobs import Stores, read_job

    options.require_some()
    require_place_for(options.result)
    require_places(options, address)
    started = time.monotonic()
    with private_room("tiebreak-audit-", options.max_size) as room:
        limits, places = options.limits, options.places()
        store = options.open_content(stop=room.stop)
        where = _find(store, address, room.path, options)
        run = fetch(store, where, room.path, limits, warn=output.warn, max_bytes=options.max_size)
        job = read_job(run.directory, limits, places)
        job_cid = where.job if options.cluster is not None else ""
        source = Stores(locations=places, job_cid=job_cid, job_dir=run.directory, limits=limits)
        sharing = options.sharing(options.threads)
        with output.progress("auditing intervals", job.spec.intervals) as bar:

            def progress(done: int, total: int) -> None:
                bar.done(done)
                room.require_bounded()

            reports = Reports(progress=progress, event=output.warn)
            look, audited, chosen = settled(run.listing), room.path / "audited", options.run_options()
            found = audit_by_segments(job, look, source, audited, sharing, chosen, reports=reports)
        made = _result(run, found)
        file = options.result or free_name(run.spec.run_id.hex()[:8])
        made.write(file)
        if json:
            facts = {"job": where.job, "claim_address": where.claim, "result": file}
            seconds = round(time.monotonic() - started, 3)
            output.show_json(plain_audit(job, found, None) | facts | {"seconds": seconds})
        else:
            show_audit(job, found, sharing, None)
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
    from dataclasses import replace

    from tiebreak.cli.job_files import as_root
    from tiebreak.segment_audits.published_run import find

    if _is_number(address) and not Path(address).is_file():
        return _posted(int(address), options)
    claim = options.claim
    root = as_root(claim) if claim is not None else None
    found = find(store, address, None if root is not None else claim, room)
    if root is None or found.root is None:
        return replace(found, root=root or found.root)
    if root != found.root:
        raise WrongUsage(
            f"{address[:100]} is about the checkpoint root 0x{found.root.hex()}, and not the one of --claim, "
            f"0x{root.hex()}: leave --claim away, or get a result about that root."
        )
    return found


def _posted(number: int, options: PublishedOptions) -> Whereabouts:
    """Return where the chain says that a job and its claim lie, and what they have to be. Raises CommandError,
    ChainError."""
    from tiebreak.cli.summary_text import find_job
    from tiebreak.segment_audits.published_run import Whereabouts, is_address

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


def _result(run: PublishedRun, found: SegmentAudit) -> Receipt:
    """Return the findings, as a receipt of the claimed roots."""
    import re
    from importlib.metadata import version

    from roundlog.training import MAX_ADDRESS, MAX_REASON, AuditRecord, Receipt, WrongInterval, interval_ranges

    wrong = None
    if found.wrong is not None:
        stopped = found.wrong.stopped
        stopped = None if stopped is None else re.sub("[^ -~]", "?", stopped)[:MAX_REASON]
        wrong = WrongInterval(interval=found.wrong.interval, root=found.wrong.root, stopped=stopped)
    audit = AuditRecord(
        job=run.where.job,
        claim=re.sub("[^!-~]", "?", run.where.claim)[:MAX_ADDRESS],  # it may be a file's name
        parts=found.units,
        drawn=found.drawn,
        right=interval_ranges(found.right),
        wrong=wrong,
    )
    return Receipt.of(run.spec, run.listing.roots, version("tiebreak")).about(audit)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19
