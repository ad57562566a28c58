"""`tiebreak receipt` and `tiebreak verify`: what a run has come to, for others to repeat."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiebreak import quantities
from tiebreak.cli import network, option_groups, output
from tiebreak.cli.audit_output import about_data
from tiebreak.cli.failures import ANSWER_IS_NO, CommandError, WrongUsage
from tiebreak.cli.job_files import check_roots, fetched, read_claim, read_job
from tiebreak.cli.network import ContentOptions
from tiebreak.cli.option_groups import examples, panel, takes_groups
from tiebreak.cli.output import Listener

if TYPE_CHECKING:
    from roundlog.training import Job, Receipt, Repetition

_RECEIPT = examples(
    "tiebreak receipt trained --job job --out receipt.json",
    "tiebreak receipt trained --job job --out receipt.json --sign --keystore key.json",
)
_VERIFY = examples(
    "tiebreak verify receipt.json --job job --dir work",
    "tiebreak verify receipt.json --job job --dir work --run trained --share 0.1",
)
_share_option = panel("A share of the run")

_Job = Annotated[Path, typer.Option("--job", metavar="JOB", help="Directory of the job.")]


def register(app: typer.Typer) -> None:
    """Adds the two commands."""
    app.command(epilog=_RECEIPT)(receipt)
    app.command(epilog=_VERIFY)(takes_groups(verify))


def receipt(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Directory of a finished run, a trainer's or an auditor's.")
    ],
    job: _Job,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="File for the receipt.")],
    sign: Annotated[bool, typer.Option("--sign", help="Sign it with your account's key (EIP-191).")] = False,
    keystore: network.Keystore = None,
    max_memory: option_groups.Memory = option_groups.DEFAULT_MEMORY,
    json: option_groups.Json = False,
) -> None:
    """Write down what a run has come to, so that others can check it: spec, roots, versions, machine, date.

    Versions and machine are those of this process. Nothing is repeated here: `tiebreak verify` does that.
    """
    from importlib.metadata import version

    from roundlog.training import Receipt

    read = read_job(job, max_memory)
    if not run.is_dir():
        raise CommandError(f"there is no run directory {run}: make one with `tiebreak train`.")
    roots = read_claim(str(run))
    assert isinstance(roots, list), "a directory has no 64 hex digits"
    check_roots(run, roots, read)
    made = Receipt.of(read.spec, roots, version("tiebreak"))
    if sign:
        made = _signed(made, keystore)
    made.write(out)
    if json:
        output.show_json(
            {
                "receipt": out,
                "run_id": made.spec.run_id,
                "checkpoint_root": made.checkpoint_root,
                "final_state_root": made.final_state_root,
                "signer": made.signer,
            }
        )
        return
    output.show_facts(
        f"Receipt in {out}",
        {
            "run id": made.spec.run_id,
            "checkpoint root": made.checkpoint_root,
            "final state root": made.final_state_root,
            "signed by": _address(made.signer) if made.signer is not None else "nobody",
        },
    )


def _signed(made: Receipt, keystore: Path | None) -> Receipt:
    from tiebreak.transactions.keys import sign_text

    account = network.account(keystore)
    named = made.by(bytes.fromhex(account.address[2:]))
    return named.signed(sign_text(account, named.signed_text()))


def verify(
    file: Annotated[Path, typer.Argument(metavar="RECEIPT", help="A receipt, as `tiebreak receipt` writes it.")],
    job: _Job,
    directory: Annotated[
        Path,
        typer.Option(
            "--dir",
            metavar="WORK",
            help="Directory of your own, where the run is repeated. A killed repetition carries on.",
        ),
    ],
    signer: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Account that has to have signed it; without it any signature that fits will do."
        ),
    ] = None,
    run: Annotated[
        Path | None,
        _share_option(
            "--run",
            metavar="RUN",
            help="A copy of the run, whose checkpoints the intervals start from. Each is checked against the receipt "
            "before it is used, and so is the final state.",
        ),
    ] = None,
    share: Annotated[
        float,
        _share_option(
            "--share",
            parser=quantities.share,
            metavar="SHARE|all",
            help="Share of the intervals to repeat, drawn at random; at least one. A wrong interval that is not drawn "
            "goes unnoticed. Less than all needs --run, and is begun anew after a kill.",
        ),
    ] = option_groups.DEFAULT_VERIFY_LOG,
    micro_batches: option_groups.MicroBatches = 1,
    *,
    computing: option_groups.Computing,
    content: ContentOptions,
    json: option_groups.Json = False,
) -> None:
    """Check a receipt by repeating its run, or a share of it: right, or the first interval that differs.

    Of a job that was fetched without its data, the blocks that are used are fetched, each checked, and counted.

    Exit code 0 if it is right, as far as it was repeated; 3 if an interval comes to another state root, a checkpoint of
    RUN is not the receipt's, or the signature is not the signer's; 1 if that cannot be told, as with the receipt of
    another job.
    """
    from roundlog.training import draw_intervals, read_receipt

    if share < 1 and run is None:
        raise WrongUsage("a share of the run starts from its checkpoints: name a copy of it with --run, or repeat all.")
    if run is not None and run.resolve() == directory.resolve():
        raise WrongUsage(f"{run} is the run to be checked: repeat it in another directory, with --dir.")
    wanted = network.address(signer, "the signer") if signer is not None else None
    if run is not None and not run.is_dir():
        raise CommandError(f"there is no run directory {run}: name a copy of the run, or leave --run away.")
    computing.use_threads()
    read = read_receipt(file)
    made = read_job(job, computing.max_memory, micro_batches, content)
    if made.spec != read.spec:
        raise CommandError(
            f"{file} is the receipt of the run 0x{read.spec.run_id.hex()}, and the job in {job} is that of "
            f"0x{made.spec.run_id.hex()}: give the job that the receipt is of."
        )
    started = time.monotonic()
    wrong_signature = _wrong_signature(read, wanted)
    drawn = draw_intervals(made.spec.intervals, share)
    found = None
    if wrong_signature is None:
        found = _repeat(read, made, directory, run, drawn, computing, micro_batches)
    answer = _Answer(read, made, wrong_signature, found, len(drawn))
    if json:
        facts = {"receipt": file, "fetched_data_bytes": fetched(made)}
        output.show_json(answer.plain() | facts | {"seconds": round(time.monotonic() - started, 3)})
    else:
        answer.show(file)
        for name, count in about_data(made, fetched(made)).items():
            output.show_line(f"{name.capitalize()}: {count}.")
    if not answer.is_right:
        raise typer.Exit(ANSWER_IS_NO)


def _repeat(
    read: Receipt,
    made: Job,
    directory: Path,
    run: Path | None,
    drawn: list[int],
    computing: option_groups.Computing,
    micro_batches: int,
) -> Repetition:
    from roundlog.training import repeat, repeat_all

    if run is None:
        with output.progress("repeating", made.spec.steps) as bar:
            listener = Listener(bar, made.spec.steps)
            chosen = computing.run_options(micro_batches, listener, listener.resumes)
            return repeat_all(made, read.state_roots, directory, chosen)
    with output.progress("repeating intervals", len(drawn)) as bar:
        chosen = computing.run_options(micro_batches)
        return repeat(made, read.state_roots, run, directory, drawn, chosen, bar.done)


def _wrong_signature(read: Receipt, wanted: str | None) -> str | None:
    """Fault of the signature, in one clause; None if it is right, or if there is none and none was asked for."""
    from tiebreak.transactions.keys import signer_of

    if read.signer is None or read.signature is None:
        return None if wanted is None else f"nobody has signed it, and {wanted} should have"
    if signer_of(read.signed_text(), read.signature) != read.signer:
        return f"its signature is not that of {_address(read.signer)} over what it says"
    if wanted is not None and bytes.fromhex(wanted[2:]) != read.signer:
        return f"{_address(read.signer)} has signed it, and not {wanted}"
    return None


@dataclass(frozen=True, slots=True)
class _Answer:
    """Answer of `verify`."""

    read: Receipt
    job: Job
    wrong_signature: str | None
    found: Repetition | None
    """Result of the repetition; None if nothing was repeated, because of the signature."""
    drawn: int
    """Intervals that were to be repeated, drawn at random."""

    @property
    def is_right(self) -> bool:
        found = self.found
        return found is not None and found.first_wrong is None and not found.wrong_states

    def plain(self) -> dict[str, object]:
        """The answer for programs."""
        found, intervals = self.found, self.job.spec.intervals
        return {
            "right": self.is_right,
            "run_id": self.read.spec.run_id,
            "checkpoint_root": self.read.checkpoint_root,
            "signer": self.read.signer,
            "wrong_signature": self.wrong_signature,
            "intervals": intervals,
            "repeated_intervals": len(found.repeated) if found is not None else 0,
            "first_wrong_interval": found.first_wrong if found is not None else None,
            "stopped": found.stopped if found is not None else None,
            "wrong_states": found.wrong_states if found is not None else [],
            "one_wrong_unnoticed": self._unnoticed(1) if found is not None else 1.0,
        }

    def show(self, file: Path) -> None:
        """Prints the answer for people."""
        found, spec = self.found, self.job.spec
        if found is None:
            output.show_line(f"WRONG: {file}: {self.wrong_signature}; nothing was repeated.")
            return
        for text in found.wrong_states:
            output.show_line(f"WRONG: {text}; it was not used.")
        if found.first_wrong is not None:
            first = found.first_wrong * spec.interval
            claimed = self.read.state_roots[found.first_wrong].hex()
            came = (
                f"stops ({found.stopped})" if found.found is None else f"comes to the state root 0x{found.found.hex()}"
            )
            output.show_line(
                f"WRONG: interval {found.first_wrong + 1} of {spec.intervals} (steps {first} to "
                f"{first + spec.interval - 1}) {came}, and {file} says 0x{claimed}."
            )
            return
        repeated = len(found.repeated)
        said = "nobody has signed it" if self.read.signer is None else f"signed by {_address(self.read.signer)}"
        if repeated == spec.intervals:
            output.show_line(f"Right: all {repeated} intervals come to the state roots of {file}; {said}.")
            return
        output.show_line(
            f"Right as far as it was repeated: {repeated} of {spec.intervals} intervals, drawn at random, come to the "
            f"state roots of {file}; {said}."
        )
        many = max(2, spec.intervals // 10)
        output.show_line(
            f"A single wrong interval goes unnoticed with a probability of {_percent(self._unnoticed(1))}, "
            f"{many} wrong ones with {_percent(self._unnoticed(many))} at most. Nothing is said about the intervals "
            "that were not repeated: repeat all to be sure."
        )

    def _unnoticed(self, wrong: int) -> float:
        """Probability, at most, that none of so many wrong intervals is repeated."""
        intervals, drawn = self.job.spec.intervals, self.drawn
        return prod(max(intervals - drawn - k, 0) / (intervals - k) for k in range(wrong))


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _address(account: bytes) -> str:
    from eth_utils.address import to_checksum_address

    return to_checksum_address(account)
