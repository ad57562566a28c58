"""`tiebreak receipt`, `tiebreak validate` and `tiebreak verify`: results of runs and texts, for others to repeat."""

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
from tiebreak.cli.exchange_files import ExchangeFiles
from tiebreak.cli.failures import ANSWER_IS_NO, CommandError, WrongUsage
from tiebreak.cli.job_files import check_roots, fetched, read_claim, read_job
from tiebreak.cli.network import ContentOptions
from tiebreak.cli.option_groups import examples, panel, takes_groups
from tiebreak.cli.output import Listener
from tiebreak.cli.receipt_files import (
    Form,
    ReceiptForm,
    account_text,
    digest_of_run,
    read_receipt_file,
    signed_receipt,
    signer_text,
    write_receipt_file,
    wrong_signature,
)
from tiebreak.cli.text_checks import about_text, check_text_receipt, plain_choice

if TYPE_CHECKING:
    from roundlog.generation import GenerationReceipt
    from roundlog.training import Job, Receipt, Repetition

_RECEIPT = examples(
    "tiebreak receipt trained --job job --out receipt.json",
    "tiebreak receipt trained --job job --out receipt.json --sign --keystore key.json",
)
_VERIFY = examples(
    "tiebreak verify receipt.json --job job --dir work",
    "tiebreak verify receipt.json --job job --dir work --run trained --share 0.1",
    "tiebreak verify text.json --model SmolLM2-135M-Instruct",
    "tiebreak verify answer.json --model SmolLM2-135M-Instruct --request asked.json --response answered.json",
)
_VALIDATE = examples(
    "tiebreak validate receipt.json",
    "tiebreak validate receipt.json --signer 0x15d34AAf54267DB7D7c367839AAf71A00a2C6A65",
)
_run_option = panel("The receipt of a run")
_share_option = panel("A share of the run")
_text_option = panel("The receipt of a text")

_Job = Annotated[Path, typer.Option("--job", metavar="JOB", help="Directory of the job.")]

_File = Annotated[
    Path,
    typer.Argument(metavar="RECEIPT", help="A receipt, as `tiebreak receipt` or `tiebreak generate` writes it."),
]

_Signer = Annotated[
    str | None,
    typer.Option(
        "--signer",
        metavar="ADDRESS",
        help="Account that has to have signed it; without it any signature that fits will do.",
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the three commands."""
    app.command(epilog=_RECEIPT)(receipt)
    app.command(epilog=_VERIFY)(takes_groups(verify))
    app.command(epilog=_VALIDATE)(validate)


def receipt(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Directory of a finished run, a trainer's or an auditor's.")
    ],
    job: _Job,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="File for the receipt.")],
    sign: Annotated[bool, typer.Option("--sign", help="Sign it with your account's key (EIP-191).")] = False,
    keystore: network.Keystore = None,
    form: Form = ReceiptForm.JSON,
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
    written = signed_receipt(made, network.account(keystore)) if sign else made
    write_receipt_file(out, written, form)
    facts = {
        "run_id": made.spec.run_id,
        "checkpoint_root": made.checkpoint_root,
        "final_state_root": made.final_state_root,
    }
    if json:
        output.show_json({"receipt": out} | facts | {"signer": written.signer})
        return
    shown = {name.replace("_", " "): root for name, root in facts.items()}
    output.show_facts(f"Receipt in {out}", shown | {"signed by": _signed_by(written)})


def validate(
    file: _File,
    signer: _Signer = None,
    json: option_groups.Json = False,
) -> None:
    """Check a receipt against itself, offline, without its model or its job: its hashes and its signature agree.

    Whether it is true, only `tiebreak verify` shows.

    Exit code 0 if they agree; 1 if the file is no receipt, or its hashes contradict each other; 3 if the signature is
    not the signer's.
    """
    from roundlog.training import Receipt

    wanted = network.address(signer, "the signer") if signer is not None else None
    read = read_receipt_file(file)
    fault = wrong_signature(read, wanted)
    kind = ("run" if read.audit is None else "audit") if isinstance(read, Receipt) else "text"
    if json:
        facts = {"receipt": file, "kind": kind, "digest": read.digest, "signer": read.signer}
        facts |= plain_choice(read) if not isinstance(read, Receipt) else {}
        output.show_json({"valid": fault is None} | facts | {"wrong_signature": fault})
    elif fault is not None:
        output.show_line(f"WRONG: {file}: {fault}.")
    else:
        about = about_text(read) if not isinstance(read, Receipt) else _about_run(read)
        output.show_facts(f"{file} agrees with itself", about | {"digest": read.digest, "signed by": _signed_by(read)})
    if fault is not None:
        raise typer.Exit(ANSWER_IS_NO)


def _about_run(read: Receipt) -> dict[str, object]:
    return {
        "receipt of": "a run" if read.audit is None else "an audit of a run",
        "run id": read.spec.run_id,
        "checkpoint root": read.checkpoint_root,
        "final state root": read.final_state_root,
    }


def _signed_by(read: Receipt | GenerationReceipt) -> str:
    return account_text(read.signer) if read.signer is not None else "nobody"


def verify(
    file: _File,
    job: Annotated[
        Path | None, _run_option("--job", metavar="JOB", help="Directory of the job that the receipt is of.")
    ] = None,
    directory: Annotated[
        Path | None,
        _run_option(
            "--dir",
            metavar="WORK",
            help="Directory of your own, where the run is repeated. A killed repetition carries on.",
        ),
    ] = None,
    signer: _Signer = None,
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
    model: Annotated[
        Path | None,
        _text_option("--model", metavar="MODEL", help="Folder, or GGUF file, of the model that the text is of."),
    ] = None,
    training_receipt: Annotated[
        Path | None,
        _text_option(
            "--training-receipt",
            metavar="FILE",
            help="Receipt of the run that this one has to name: the weights' origin.",
        ),
    ] = None,
    by_token: Annotated[
        bool,
        _text_option("--by-token", help="Repeat the text token by token, as it was written, and not in one pass."),
    ] = False,
    max_seconds: Annotated[
        int,
        _text_option(
            "--max-seconds",
            min=1,
            metavar="S",
            help="Longest time of the repetition, once the model is read and captured. One that is expected to take "
            "longer is refused.",
        ),
    ] = 600,
    show_prompt: Annotated[bool, _text_option("--show-prompt", help="Print the prompt, too.")] = False,
    show_text: Annotated[
        bool, _text_option("--show-text", help="Print the text, too, and how much of it is the model's.")
    ] = False,
    request: Annotated[
        Path | None,
        _text_option("--request", metavar="FILE", help="Bytes of a server's request, to compare with the receipt."),
    ] = None,
    response: Annotated[
        Path | None,
        _text_option("--response", metavar="FILE", help="Bytes of its response, with all events of a stream."),
    ] = None,
    micro_batches: option_groups.MicroBatches = 1,
    *,
    computing: option_groups.Computing,
    content: ContentOptions,
    json: option_groups.Json = False,
) -> None:
    """Check a receipt by repeating what it is of: right, or the first thing that differs.

    The receipt of a run needs --job and --dir: its intervals are repeated, or a share of them. That of a text needs
    --model: every token is the one that the model chooses behind those before it. Of a job that was fetched without its
    data, the blocks that are used are fetched, each checked, and counted. --request and --response of a server's answer
    are compared with its receipt: their hashes, what was asked for, and what was sent.

    Exit code 0 if it is right, as far as it was repeated; 3 if an interval comes to another state root, a checkpoint of
    RUN is not the receipt's, the model chooses another token or with another probability, or a body or the signature
    is not the receipt's; 1 if that cannot be told, as with the receipt of another job or model.
    """
    from roundlog.training import Receipt, draw_intervals

    if share < 1 and run is None:
        raise WrongUsage("a share of the run starts from its checkpoints: name a copy of it with --run, or repeat all.")
    if run is not None and directory is not None and run.resolve() == directory.resolve():
        raise WrongUsage(f"{run} is the run to be checked: repeat it in another directory, with --dir.")
    wanted = network.address(signer, "the signer") if signer is not None else None
    if run is not None and not run.is_dir():
        raise CommandError(f"there is no run directory {run}: name a copy of the run, or leave --run away.")
    computing.use_threads()
    read = read_receipt_file(file)
    if not isinstance(read, Receipt):
        if model is None or not (job is directory is run is None):
            raise WrongUsage(
                f"{file} is the receipt of a text: name its model's folder with --model, and no job or run."
            )
        named = digest_of_run(training_receipt) if training_receipt is not None else None
        right = check_text_receipt(
            file,
            read,
            model,
            wrong_signature(read, wanted),
            None if named in (None, read.training_receipt) else f"it does not name {training_receipt} as its origin",
            by_token=by_token,
            max_seconds=max_seconds,
            show_prompt=show_prompt,
            show_text=show_text,
            exchange=ExchangeFiles(request, response),
            names_training=training_receipt is not None,
            json=json,
        )
        if not right:
            raise typer.Exit(ANSWER_IS_NO)
        return
    of_a_text = any((model, by_token, show_prompt, show_text, training_receipt, request, response))
    if job is None or directory is None or of_a_text:
        raise WrongUsage(f"{file} is the receipt of a run: name its job with --job, your --dir, and no model.")
    made = read_job(job, computing.max_memory, micro_batches, content)
    if made.spec != read.spec:
        raise CommandError(
            f"{file} is the receipt of the run 0x{read.spec.run_id.hex()}, and the job in {job} is that of "
            f"0x{made.spec.run_id.hex()}: give the job that the receipt is of."
        )
    started = time.monotonic()
    fault = wrong_signature(read, wanted)
    drawn = draw_intervals(made.spec.intervals, share)
    found = None
    if fault is None:
        found = _repeat(read, made, directory, run, drawn, computing, micro_batches)
    answer = _Answer(read, made, fault, found, len(drawn))
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
        said = signer_text(self.read)
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
