"""Runs that strangers have published: from one content address to the job and the claimed roots, fetched and checked.

Nothing is believed. An address names its bytes; the list has to be one of this job's; states are held against its roots
by those that start from them, and the roots are what is audited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from roundlog.commitments import MerkleTree
from roundlog.program import Program
from roundlog.segment_audits import (
    CHECKPOINTS_FILE,
    MAX_LIST_BYTES,
    Listing,
    ListingError,
    read_address_of_job,
    read_listing,
)
from roundlog.spec import TrainingSpec
from roundlog.training import (
    JOB_FILES,
    MAX_RECEIPT_BYTES,
    JobLimits,
    Receipt,
    ReceiptError,
    read_receipt,
    require_memory,
)

from tiebreak.segment_audits.stored_jobs import fetch_without_data
from tiebreak.store.dagpb import Cid
from tiebreak.store.store import Store
from tiebreak.store.store_errors import InvalidCid, MalformedContent, short

_MOST_NAMED = 3


class NotAuditable(Exception):
    """An address, or what lies there, that brings no claim to be audited. The message is one sentence with a remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Where a job and what is claimed of it lie."""

    job: str
    """Content address of the job's directory."""
    claim: str
    """Content address, or path, of the published log or the receipt that the roots are from."""
    root: bytes | None = None
    """The checkpoint root that the claimed roots have to make; None for any."""
    spec: TrainingSpec | None = None
    """The spec that the job has to have; None for any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """A job, in a directory without its data, and the claim about it."""

    where: Whereabouts
    directory: Path
    spec: TrainingSpec
    listing: Listing


def is_address(text: str) -> bool:
    """Whether a text is a content address."""
    try:
        Cid.parse(text)
    except InvalidCid:
        return False
    return True


def find(store: Store, address: str, claim: str | None, room: Path) -> Whereabouts:
    """Where job and claim lie, from the address of a published log, of a job (with `claim`: the address of a log or of
    a receipt), or of the result of an audit; from a receipt in a file as well. room: for small files.

    Raises NotAuditable, StoreError."""
    found = _names(store, address)
    if found is None:
        receipt = _receipt(store, address, room)
        if receipt.audit is not None:
            if claim is not None:
                raise NotAuditable(
                    f"{short(address, 100)} is the result of an audit, which says itself what is claimed: leave "
                    "--claim away."
                )
            claimed, root = receipt.audit.claim, receipt.checkpoint_root
            return Whereabouts(
                job=receipt.audit.job, claim=claimed if is_address(claimed) else address, root=root, spec=receipt.spec
            )
        raise NotAuditable(
            f"{short(address, 100)} is a receipt, which does not say where its job lies: give the address of the job, "
            "and this one with --claim."
        )
    if CHECKPOINTS_FILE in found:
        if claim is not None:
            raise NotAuditable(
                f"{address} is a published log, a claim by itself: leave --claim away, or give its root."
            )
        try:
            job = read_address_of_job(_fetched_list(store, found[CHECKPOINTS_FILE], room))
        except ListingError as error:
            raise NotAuditable(f"{address} is no log that can be audited ({error}): check the address.") from error
        if job is None or not is_address(job):
            raise NotAuditable(
                f"the log {address} does not say where its job lies: give the address of the job, and this one with "
                "--claim."
            )
        return Whereabouts(job=job, claim=address)
    _require_job(address, found)
    if claim is None:
        raise NotAuditable(
            f"{address} is a job, and no claim about it is published there: give the address of the log that its "
            "trainer has published with --publish-every, or name that with --claim."
        )
    return Whereabouts(job=address, claim=claim)


def fetch(
    store: Store, where: Whereabouts, room: Path, limits: JobLimits, *, warn: Callable[[str], None], max_bytes: int
) -> PublishedRun:
    """Fetches the job without its data, and the claimed roots. The job's spec and its need of memory are looked at
    before its other files are fetched. Raises NotAuditable, JobError, StoreError, OSError."""
    specs: list[TrainingSpec] = []

    def accept(program: Program, spec: TrainingSpec) -> None:
        if where.spec not in (None, spec):
            raise NotAuditable(f"the files at {where.job} are those of another job than the claim is about.")
        if spec.log_decides:
            raise NotAuditable(
                f"this job rounds by the policy {spec.policy_name}, under which nobody can repeat a part of a run."
            )
        require_memory(program, spec, limits)
        specs.append(spec)

    # What else was published at the wrong address is told in the same words.
    _require_job(where.job, _names(store, where.job) or {})
    directory = room / "job"
    fetch_without_data(store, where.job, directory, accept, warn=warn, max_bytes=max_bytes)
    spec = specs[0]
    listing = claimed_listing(store, where.claim, spec, room)
    if where.root is not None and MerkleTree(listing.roots).root != where.root:
        raise NotAuditable(
            f"the roots at {where.claim} do not make the claimed checkpoint root 0x{where.root.hex()}: other roots are "
            "published there than are claimed, so do not rely on either."
        )
    return PublishedRun(where=where, directory=directory, spec=spec, listing=listing)


def claimed_listing(store: Store, claim: str, spec: TrainingSpec, room: Path) -> Listing:
    """Return the claimed roots of a whole run, and of a log where states lie. claim, room: as of `find`. Raises
    NotAuditable, StoreError."""
    found = _names(store, claim)
    if found is None:
        receipt = _receipt(store, claim, room)
        if receipt.spec != spec:
            raise NotAuditable(f"{short(claim, 100)} is the receipt of another job's run: give the job that it is of.")
        return Listing(roots=receipt.state_roots)
    if CHECKPOINTS_FILE not in found:
        raise NotAuditable(f"{claim} lists no checkpoints: it takes a log that was published with --publish-every.")
    try:
        listing = read_listing(_fetched_list(store, found[CHECKPOINTS_FILE], room), spec)
    except ListingError as error:
        raise NotAuditable(f"{claim} claims nothing about this job ({error}): check both addresses.") from error
    if not listing.complete:
        raise NotAuditable(f"{claim} is the log of a run that had not ended: ask for the whole one.")
    return listing


def _names(store: Store, address: str) -> dict[str, str] | None:
    """The entries of a directory; None for a file, and for a path on this machine."""
    if not is_address(address):
        return None
    try:
        return store.entries(address)
    except MalformedContent:
        return None


def _require_job(address: str, names: dict[str, str]) -> None:
    if lacking := [name for name in JOB_FILES if name not in names]:
        others = ", ".join(short(repr(name), 60) for name in sorted(names)[:_MOST_NAMED])
        what = f"a directory with {others}" if names else "no directory"
        raise NotAuditable(
            f"{address} is neither a job nor a published log: it is {what}, and has no {lacking[0]}; check the address."
        )


def _fetched_list(store: Store, cid: str, room: Path) -> Path:
    return _fetched_file(store, cid, room / CHECKPOINTS_FILE, MAX_LIST_BYTES)


def _fetched_file(store: Store, cid: str, path: Path, most: int) -> Path:
    path.unlink(missing_ok=True)
    store.get_file(cid, path, max_bytes=most)
    return path


def _receipt(store: Store, place: str, room: Path) -> Receipt:
    """The receipt at a content address, or in a file. Raises NotAuditable, StoreError."""
    try:
        path = (
            _fetched_file(store, place, room / "receipt.json", MAX_RECEIPT_BYTES) if is_address(place) else Path(place)
        )
        return read_receipt(path)
    except (ReceiptError, MalformedContent) as error:
        why = str(error).replace(str(room / "receipt.json"), "it").rstrip(".")
        raise NotAuditable(
            f"{short(place, 100)} is no job, no published log and no receipt ({short(why)}); check the address."
        ) from error
