"""Files of jobs: in a directory, in content stores, or partly in both; the commands that move them; and claims, as a
command is given them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tiebreak import quantities
from tiebreak.cli import output
from tiebreak.cli.failures import CommandError
from tiebreak.cli.network import ContentOptions, ContractOptions
from tiebreak.cli.option_groups import JOB, JSON, MEMORY, argument, command, option

if TYPE_CHECKING:
    from roundlog.program import Program
    from roundlog.spec import TrainingSpec
    from roundlog.training import Job

    from tiebreak.store.store import Store

_MEND = "let `tiebreak train` end in the same directory, which mends it"


def read_job(directory: Path, max_memory: int, micro_batches: int = 1, content: ContentOptions | None = None) -> Job:
    """Read the job in a directory, checked. content: stores where its data may lie; None for a command that reads only
    data in the directory. Raises JobError, CommandError, StoreError."""
    if not directory.is_dir():
        raise CommandError(f"there is no job directory {directory}: make one with `tiebreak job create`.")
    from roundlog.training import JobLimits

    from tiebreak import segment_audits

    limits = JobLimits(memory_bytes=max_memory, micro_batches=micro_batches)
    return segment_audits.read_job(directory, limits, (lambda: None) if content is None else content.open_content)


def require_publishable(directory: Path) -> None:
    """Refuse a directory that has more than the files of a job, or less. Raises CommandError."""
    from roundlog.training import JOB_FILES

    from tiebreak.segment_audits import lies_elsewhere

    if lies_elsewhere(directory):
        raise CommandError(
            f"{directory} has a job without its data, and would be published without them: fetch it with its data."
        )
    strangers = sorted({path.name for path in directory.iterdir()} - set(JOB_FILES))
    if strangers:
        raise CommandError(f"{directory} would be published with {strangers[0]} in it: move that somewhere else.")


def published_job(directory: Path, store: Store) -> str | None:
    """Return the address of a job's directory in the stores, where it is put if its data are in it; None, with a
    warning, if it has other files. Raises StoreError."""
    from tiebreak.segment_audits import addresses_of, lies_elsewhere

    if lies_elsewhere(directory):
        return addresses_of(directory)["job"]
    try:
        require_publishable(directory)
    except CommandError as error:
        output.warn(f"the job itself is not published beside its checkpoints: {error}")
        return None
    return store.add_directory(directory)


def fetched(job: Job) -> int | None:
    """Return the bytes of a job's data that this process has fetched; None if the data lie in its directory."""
    from roundlog.data import RemoteField, fetched_bytes

    fields = list(job.dataset.values())
    return fetched_bytes(fields) if any(isinstance(field, RemoteField) for field in fields) else None


@command("job publish", "tiebreak job publish job --store http://127.0.0.1:5001")
def publish(directory: Path = JOB, max_memory: int = MEMORY, *, content: ContentOptions, json: bool = JSON) -> None:
    """Put a job into the content stores, and print the address by which others fetch it. No chain is asked."""
    if directory.is_dir():
        require_publishable(directory)
    job = read_job(directory, max_memory)
    cid = content.open_content(warn=output.warn).add_directory(directory)
    output.show_result(json, {"cid": cid, "run_id": job.spec.run_id}, "Published")


@command(
    "job fetch",
    "tiebreak job fetch 1 --out job",
    "tiebreak job fetch bafy... --out job --without-data --store gateway+https://gateway.example",
)
def fetch(
    job: str = argument("JOB", "Number of a posted job, or the content address of a published one."),
    out: Path = option("Directory for the job's files; it must not exist yet.", ...),
    without_data: bool = option(
        "Leave the data in the stores. Commands that read them (train, audit, verify) then fetch the blocks of 16 KiB "
        "that they use, each checked under the job's data root.",
        False,
    ),
    max_size: int = option(
        "Refuse files of more than this, together (default: 16GiB).", "16GiB", "SIZE", parser=quantities.size
    ),
    *,
    chain: ContractOptions,
    content: ContentOptions,
    json: bool = JSON,
) -> None:
    """Fetch a job's files by content address, every byte checked, with its data or without them."""
    from roundlog.training import read_program

    from tiebreak.segment_audits import fetch_named, fetch_without_data, job_plan

    posted = None
    if job.isascii() and job.isdigit():
        from tiebreak.cli.summary_text import find_job

        posted = find_job(chain.open_game(), int(job))
    cid = job if posted is None else posted.job_cid
    if out.exists():
        raise CommandError(f"{out} exists already: choose another place for the job.")
    store = content.open_content()

    def accept(program: Program, spec: TrainingSpec) -> None:
        if posted is not None and spec != posted.spec.training:
            raise CommandError(f"the files at {cid} are of another job than number {job}: do not rely on that job.")

    if without_data:
        fetch_without_data(store, cid, out, accept, warn=output.warn, max_bytes=max_size)
    else:
        fetch_named(store, cid, out, job_plan(accept), warn=output.warn, max_bytes=max_size)
    program, spec = read_program(out)
    data = sum(kind.nbytes(spec.data_rows) for kind in program.fields.values())
    facts = {"directory": out, "cid": cid, "run_id": spec.run_id, "data_bytes": data, "has_data": not without_data}
    output.show_result(json, facts, f"Job in {out}")


def as_root(text: str) -> bytes | None:
    """Return the root that a text is in hex; None for anything else."""
    is_root = re.fullmatch("(0x)?[0-9a-fA-F]{64}", text)
    return bytes.fromhex(text.removeprefix("0x")) if is_root else None


def read_claim(text: str) -> bytes | list[bytes]:
    """Return a checkpoint root in hex, or the state roots on record in a run directory. Raises CommandError."""
    if (root := as_root(text)) is not None:
        return root
    path = Path(text) / "roots"
    if not path.is_file():
        raise CommandError(f"{text} is neither a root of 64 hex digits nor the directory of a run: check the claim.")
    if path.stat().st_size > 32 << 32:
        raise CommandError(f"{path} is too large to be the record of a run: check the directory.")
    content = path.read_bytes()
    if len(content) % 32:
        raise CommandError(f"{path} does not hold whole roots of 32 bytes: {_MEND}.")
    return [content[i : i + 32] for i in range(0, len(content), 32)]


def check_roots(directory: Path, roots: list[bytes], job: Job) -> None:
    """Refuse roots that the run in this directory did not write down for this job, so that a damaged file accuses
    nobody. Raises CommandError."""
    from roundlog.training import root_sum

    if len(roots) != job.spec.intervals:
        raise CommandError(f"the run {directory} has {len(roots)} of {job.spec.intervals} checkpoints: {_MEND}.")
    path = directory / "roots.sums"
    if not path.is_file():
        raise CommandError(f"there is no {path}, which says whether the roots are whole: copy it, too, or {_MEND}.")
    sums = b"".join(root_sum(job.spec.run_id, interval, root) for interval, root in enumerate(roots))
    with path.open("rb") as file:
        recorded = file.read(len(sums) + 1)
    wrong = [i for i in range(len(roots)) if sums[32 * i : 32 * i + 32] != recorded[32 * i : 32 * i + 32]]
    if wrong:
        raise CommandError(
            f"the root of interval {wrong[0]} in {directory / 'roots'} is not what the run wrote there, or the run is "
            f"another job's: copy the directory again, or {_MEND}."
        )
