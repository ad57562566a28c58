"""`tiebreak receipt` and `tiebreak verify`: results of runs and texts, for others to repeat, and states held against
their roots."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer

from tiebreak import quantities
from tiebreak.cli import network, output
from tiebreak.cli.audits import about_data
from tiebreak.cli.evaluations import EvaluationOptions, about_evaluation
from tiebreak.cli.failures import ANSWER_IS_NO, CommandError, WrongUsage
from tiebreak.cli.job_files import as_root, check_roots, fetched, read_claim, read_job
from tiebreak.cli.network import ContentOptions
from tiebreak.cli.option_groups import JSON, MEMORY, Computing, argument, command, option
from tiebreak.cli.output import Listener
from tiebreak.cli.receipt_files import (
    SigningOptions,
    account_text,
    read_receipt_file,
    signer_text,
)
from tiebreak.cli.text_checks import TextOptions, about_text, plain_choice

if TYPE_CHECKING:
    from roundlog.training import Job, Receipt, Repetition

    from tiebreak.cli.receipt_files import AnyReceipt


@command(
    "receipt",
    "tiebreak receipt trained --job job --out receipt.json",
    "tiebreak receipt trained --job job --out receipt.json --sign --keystore key.json",
    "tiebreak receipt trained --job job --out receipt.json --format in-toto --sign --signing-key key.pem",
)
def receipt(
    run: Path = argument("RUN", "Directory of a finished run, a trainer's or an auditor's."),
    job: Path = option("Directory of the job.", ..., "JOB"),
    out: Path = option("File for the receipt.", ..., "FILE"),
    max_memory: int = MEMORY,
    *,
    signing: SigningOptions,
    json: bool = JSON,
) -> None:
    """Write down what a run has come to, so that others can check it: spec, roots, versions, machine, date.

    Versions and machine are those of this process. Nothing is repeated here: `tiebreak verify` does that.
    """
    from importlib.metadata import version

    from roundlog.training import Receipt

    writer, read = signing.writer(), read_job(job, max_memory)
    if not run.is_dir():
        raise CommandError(f"there is no run directory {run}: make one with `tiebreak train`.")
    roots = read_claim(str(run))
    assert isinstance(roots, list), "a directory has no 64 hex digits"
    check_roots(run, roots, read)
    made = Receipt.of(read.spec, roots, version("tiebreak"))
    written = writer.write(out, made, job=job)
    facts = {
        "receipt": out,
        "run_id": made.spec.run_id,
        "checkpoint_root": made.checkpoint_root,
        "final_state_root": made.final_state_root,
        "signer": written.signer,
    }
    output.show_result(json, facts, f"Receipt in {out}")


@dataclass(frozen=True, kw_only=True)
class RunReceiptOptions:
    """Options of the check of a run's receipt, or of a state."""

    panel: ClassVar = "The receipt of a run"
    job: Path | None = option("Directory of the job that the receipt, or the state, is of.", metavar="JOB")
    directory: Path | None = option(
        "Directory of your own, where the run is repeated. A killed repetition carries on.", None, "WORK", name="--dir"
    )
    run: Path | None = option(
        "A copy of the run, whose checkpoints the intervals start from. Each is checked against the receipt before it "
        "is used, and so is the final state.",
        metavar="RUN",
    )
    share: float | None = option(
        "Share of the intervals, or of an evaluation's answers, to repeat, drawn at random; at least one (default: "
        "all). A wrong one that is not drawn goes unnoticed. Less than all intervals needs --run, and is begun anew "
        "after a kill.",
        metavar="SHARE|all",
        parser=quantities.share,
    )
    root: str | None = option(
        "FILE is a state (safetensors), and has to have this root in hex, e.g. the final state root that `train`, "
        "`audit` or `status` print. Of the files of --job, program.json and spec.json are read.",
        metavar="ROOT",
    )

    def check(self) -> None:
        """Refuse a copy of the run that is the place of the repetition. Raises WrongUsage, CommandError."""
        run = self.run
        if run is not None and self.directory is not None and run.resolve() == self.directory.resolve():
            raise WrongUsage(f"{run} is the run to be checked: repeat it in another directory, with --dir.")
        if run is not None and not run.is_dir():
            raise CommandError(f"there is no run directory {run}: name a copy of the run, or leave --run away.")


@command(
    "verify",
    "tiebreak verify receipt.json --job job --dir work",
    "tiebreak verify receipt.json --job job --dir work --run trained --share 0.1",
    "tiebreak verify text.json --model SmolLM2-135M-Instruct",
    "tiebreak verify answer.json --model SmolLM2-135M-Instruct --request asked.json --response answered.json",
    "tiebreak verify eval.json --model SmolLM2-135M-Instruct --tasks arc.yaml --share 0.05",
    "tiebreak verify eval.json --model DIR --tasks arc.yaml --share 0.05 --beacon chain --posted 0x...",
    "tiebreak verify text.json --offline --signer 0x15d34AAf54267DB7D7c367839AAf71A00a2C6A65",
    "tiebreak verify model.safetensors --job job --root 0x...",
)
def verify(
    file: Path = argument("FILE", "A receipt, as `receipt`, `generate`, `serve` or `audit` writes it; or a state."),
    offline: bool = option(
        "Only check the receipt against itself: its hashes and its signature agree. Nothing is repeated.", False
    ),
    signer: str | None = option(
        "Account that has to have signed it; without it any signature that fits will do.", metavar="ADDRESS"
    ),
    public_key: Path | None = option("Public key (PEM) that has to have signed its envelope, too.", metavar="FILE"),
    *,
    of_run: RunReceiptOptions,
    of_text: TextOptions,
    of_evaluation: EvaluationOptions,
    computing: Computing,
    content: ContentOptions,
    chain: network.ChainOptions,
    json: bool = JSON,
) -> None:
    """Check a receipt by repeating what it is of: right, or the first thing that differs. No chain is asked, but for
    --beacon chain.

    The receipt of a run needs --job and --dir: its intervals are repeated, or a share of them. That of a text needs
    --model: every token is the one that the model chooses behind those before it. That of an evaluation needs
    --model and --tasks: its answers, or a share of them, are the model's, and its scores follow from all of them.
    Of a job that was fetched without its data, the blocks that are used are fetched, each checked, and counted.
    --request and --response of a server's answer are compared with its receipt: their hashes, what was asked for,
    and what was sent. A state is held against --root, every bit of it, and nothing is trained. Of a statement of
    in-toto the files that it is about are compared, too, and the signatures of its envelope.

    Exit code 0 if it is right, as far as it was repeated; 3 if an interval comes to another state root, a checkpoint of
    RUN is not the receipt's, the model chooses another token or with another probability, a body or the signature
    is not the receipt's, or the state has another root; 1 if that cannot be told, as with the receipt of another job or
    model. With --offline: 0 if it agrees with itself, 3 for another signature, 1 if it is no receipt.
    """
    from roundlog.generation.generation_receipt import GenerationReceipt
    from roundlog.training import Receipt

    if of_run.root is not None:
        if offline or signer is not None or public_key is not None or of_text != TextOptions() or of_run.job is None:
            raise WrongUsage(
                "a state is held against --root by the job that it is of: name that with --job, and no more."
            )
        is_right = _verify_state(file, of_run.root, of_run.job, computing.max_memory, json)
    else:
        wanted = network.address(signer, "the signer") if signer is not None else None
        computing.use_threads()
        repeats = (of_run, of_text, of_evaluation) != (RunReceiptOptions(), TextOptions(), EvaluationOptions())
        if offline and repeats:
            raise WrongUsage("nothing is repeated offline: leave --offline away, or all that a repetition needs.")
        of_run.check()
        held = read_receipt_file(file)
        read, fault = held.receipt, held.fault(wanted, public_key)
        if fault is None:
            held.require_subject(file, of_text.model, of_run.job)
        if offline:
            is_right = _agrees(file, read, fault, json)
        elif isinstance(read, Receipt):
            others = (of_text, of_evaluation) != (TextOptions(), EvaluationOptions())
            if others or of_run.job is None or of_run.directory is None:
                raise WrongUsage(
                    f"{file} is the receipt of a run: name its job with --job, your --dir, and no model; --offline "
                    "checks it against itself."
                )
            if of_run.share is not None and of_run.share < 1 and of_run.run is None:
                raise WrongUsage(
                    "a share of the run starts from its checkpoints: name a copy of it with --run, or repeat all."
                )
            is_right = _verify_run(file, read, fault, of_run, computing, content, json)
        elif isinstance(read, GenerationReceipt):
            if of_text.model is None or (of_run, of_evaluation) != (RunReceiptOptions(), EvaluationOptions()):
                raise WrongUsage(
                    f"{file} is the receipt of a text: name its model's folder with --model, and no job or run; "
                    "--offline checks it against itself."
                )
            is_right = of_text.check(file, read, fault, json)
        else:
            model, share = of_text.model, of_run.share
            alone = of_run == RunReceiptOptions(share=share) and of_text == TextOptions(model=model)
            if model is None or not of_evaluation.tasks or not alone:
                raise WrongUsage(
                    f"{file} is the receipt of an evaluation: name its model with --model and the files of its tasks "
                    "with --tasks, and no job, run or text; --offline checks it against itself."
                )
            is_right = of_evaluation.check(file, read, fault, model, share, chain, json)
    if not is_right:
        raise typer.Exit(ANSWER_IS_NO)


def _verify_state(file: Path, root: str, job: Path, max_memory: int, as_json: bool) -> bool:
    """Return whether a file holds the state with this root, which is printed."""
    from roundlog.training import read_program, wrong_state

    wanted = as_root(root)
    if wanted is None:
        raise WrongUsage(f"{root[:80]!r} is not a root: give the 64 hex digits of a state root, with or without 0x.")
    if not job.is_dir():
        raise CommandError(f"there is no job directory {job}: make one with `tiebreak job create`, or fetch it.")
    if not file.is_file():
        raise CommandError(f"there is no file {file}: name the model's safetensors file.")
    program, _ = read_program(job)
    need = 2 * sum(kind.nbytes for kind in program.states.values())
    if need > max_memory:
        raise CommandError(f"reading a state of this job takes up to {need} bytes: allow them with --max-memory.")
    why = wrong_state(file, program, wanted)
    if as_json:
        output.show_json({"file": file, "root": wanted, "right": why is None, "why": why})
    elif why is None:
        output.show_line(f"Right: {file} is the state with the root 0x{wanted.hex()}.")
    else:
        output.show_line(f"WRONG: {file} is not the state with the root 0x{wanted.hex()}: {why}.")
    return why is None


def _agrees(file: Path, read: AnyReceipt, fault: str | None, as_json: bool) -> bool:
    """Return whether a receipt agrees with itself, which is printed. fault: of its signature."""
    from roundlog.generation.generation_receipt import GenerationReceipt
    from roundlog.training import Receipt

    if isinstance(read, Receipt):
        kind, more = "run" if read.audit is None else "audit", dict[str, object]()
        about: dict[str, object] = {
            "receipt of": "a run" if read.audit is None else "an audit of a run",
            "run id": read.spec.run_id,
            "checkpoint root": read.checkpoint_root,
            "final state root": read.final_state_root,
        }
    elif isinstance(read, GenerationReceipt):
        kind, more, about = "text", plain_choice(read), about_text(read)
    else:
        kind, more, about = "evaluation", {}, about_evaluation(read)
    if as_json:
        facts = {"receipt": file, "kind": kind, "digest": read.digest, "signer": read.signer}
        output.show_json({"valid": fault is None} | facts | more | {"wrong_signature": fault})
    elif fault is not None:
        output.show_line(f"WRONG: {file}: {fault}; nothing was repeated.")
    else:
        output.show_facts(f"Receipt in {file}", about | {"digest": read.digest, "signed by": _signed_by(read)})
        output.show_line(f"{file} agrees with itself; nothing was repeated.")
    return fault is None


def _signed_by(read: AnyReceipt) -> str:
    return account_text(read.signer) if read.signer is not None else "nobody"


def _verify_run(
    file: Path,
    read: Receipt,
    fault: str | None,
    wanted: RunReceiptOptions,
    computing: Computing,
    content: ContentOptions,
    as_json: bool,
) -> bool:
    """Return whether the receipt of a run is right, as far as it is repeated, which is printed."""
    from roundlog.training import draw_intervals, repeat, repeat_all

    job, directory, run = wanted.job, wanted.directory, wanted.run
    assert job is not None and directory is not None
    made = read_job(job, computing.max_memory, computing.micro_batches, content)
    if made.spec != read.spec:
        raise CommandError(
            f"{file} is the receipt of the run 0x{read.spec.run_id.hex()}, and the job in {job} is that of "
            f"0x{made.spec.run_id.hex()}: give the job that the receipt is of."
        )
    started = time.monotonic()
    drawn = draw_intervals(made.spec.intervals, 1.0 if wanted.share is None else wanted.share)
    found = None
    if fault is None and run is None:
        with output.progress("repeating", made.spec.steps) as bar:
            listener = Listener(bar, made.spec.steps)
            chosen = computing.run_options(listener, listener.resumes)
            found = repeat_all(made, read.state_roots, directory, chosen)
    elif fault is None and run is not None:
        with output.progress("repeating intervals", len(drawn)) as bar:
            chosen = computing.run_options()
            found = repeat(made, read.state_roots, run, directory, drawn, chosen, bar.done)
    answer = _RunAnswer(read, made, fault, found, len(drawn))
    if as_json:
        facts = {"receipt": file, "fetched_data_bytes": fetched(made)}
        output.show_json(answer.plain() | facts | {"seconds": round(time.monotonic() - started, 3)})
    else:
        answer.show(file)
        for name, count in about_data(made, fetched(made)).items():
            output.show_line(f"{name.capitalize()}: {count}.")
    return answer.is_right


@dataclass(frozen=True, slots=True)
class _RunAnswer:
    """Answer of `verify` on the receipt of a run."""

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
        """Return the answer for programs."""
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
        """Print the answer for people."""
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
        """Return the probability, at most, that none of so many wrong intervals is repeated."""
        intervals, drawn = self.job.spec.intervals, self.drawn
        return prod(max(intervals - drawn - k, 0) / (intervals - k) for k in range(wrong))


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
