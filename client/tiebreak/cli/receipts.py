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
    Answer,
    SigningOptions,
    account_text,
    read_receipt_file,
    signer_text,
)
from tiebreak.cli.text_checks import TextOptions, about_text, plain_choice

if TYPE_CHECKING:
    from roundlog.spec import TrainingSpec
    from roundlog.training import Receipt, Repetition

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

    def repeat(self, file: Path, read: Receipt, computing: Computing, content: ContentOptions) -> Answer:
        """Repeat the run of a receipt, or a share of it. Raises CommandError for the receipt of another job, JobError,
        StoreError."""
        from roundlog.training import draw_intervals, repeat, repeat_all

        job, directory = self.job, self.directory
        assert job is not None and directory is not None
        made = read_job(job, computing.max_memory, computing.micro_batches, content)
        if made.spec != read.spec:
            raise CommandError(
                f"{file} is the receipt of the run 0x{read.spec.run_id.hex()}, and the job in {job} is that of "
                f"0x{made.spec.run_id.hex()}: give the job that the receipt is of."
            )
        drawn = draw_intervals(made.spec.intervals, 1.0 if self.share is None else self.share)
        if self.run is None:
            with output.progress("repeating", made.spec.steps) as bar:
                listener = Listener(bar, made.spec.steps)
                chosen = computing.run_options(listener, listener.resumes)
                found = repeat_all(made, read.state_roots, directory, chosen)
        else:
            with output.progress("repeating intervals", len(drawn)) as bar:
                chosen = computing.run_options()
                found = repeat(made, read.state_roots, self.run, directory, drawn, chosen, bar.done)
        answer = _about_run(file, read, made.spec, found, len(drawn))
        answer.plain["fetched_data_bytes"] = fetched(made)
        answer.lines.extend(f"{name.capitalize()}: {one}." for name, one in about_data(made, fetched(made)).items())
        return answer


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

    started = time.monotonic()
    if of_run.root is not None:
        if offline or signer is not None or public_key is not None or of_text != TextOptions() or of_run.job is None:
            raise WrongUsage(
                "a state is held against --root by the job that it is of: name that with --job, and no more."
            )
        facts: dict[str, object] = {"file": file}
        answer = _about_state(file, of_run.root, of_run.job, computing.max_memory)
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
        facts = {"receipt": file, "digest": read.digest, "signer": read.signer, "wrong_signature": fault}
        unsigned = None if fault is None else Answer(False, {}, [f"WRONG: {file}: {fault}; nothing was repeated."])
        if offline:
            plain, about = _described(read)
            facts |= {"valid": fault is None} | plain
            if fault is None and not json:
                signed = account_text(read.signer) if read.signer is not None else "nobody"
                output.show_facts(f"Receipt in {file}", about | {"digest": read.digest, "signed by": signed})
            answer = unsigned or Answer(True, {}, [f"{file} agrees with itself; nothing was repeated."])
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
            answer = unsigned or of_run.repeat(file, read, computing, content)
        elif isinstance(read, GenerationReceipt):
            if of_text.model is None or (of_run, of_evaluation) != (RunReceiptOptions(), EvaluationOptions()):
                raise WrongUsage(
                    f"{file} is the receipt of a text: name its model's folder with --model, and no job or run; "
                    "--offline checks it against itself."
                )
            answer = unsigned or of_text.check(file, read)
        else:
            model, share = of_text.model, of_run.share
            alone = of_run == RunReceiptOptions(share=share) and of_text == TextOptions(model=model)
            if model is None or not of_evaluation.tasks or not alone:
                raise WrongUsage(
                    f"{file} is the receipt of an evaluation: name its model with --model and the files of its tasks "
                    "with --tasks, and no job, run or text; --offline checks it against itself."
                )
            answer = unsigned or of_evaluation.check(file, read, model, share, chain)
    if json:
        facts |= {"right": answer.is_right} | answer.plain
        output.show_json(facts | {"seconds": round(time.monotonic() - started, 3)})
    else:
        for line in answer.lines:
            output.show_line(line)
    if not answer.is_right:
        raise typer.Exit(ANSWER_IS_NO)


def _about_state(file: Path, root: str, job: Path, max_memory: int) -> Answer:
    """Hold the state in a file against a root."""
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
    said = f"{file} is the state with the root 0x{wanted.hex()}."
    if why is not None:
        said = f"WRONG: {file} is not the state with the root 0x{wanted.hex()}: {why}."
    return Answer(why is None, {"root": wanted, "why": why}, [said if why is not None else f"Right: {said}"])


def _described(read: AnyReceipt) -> tuple[dict[str, object], dict[str, object]]:
    """Return what a receipt is of, for programs and for people."""
    from roundlog.generation.generation_receipt import GenerationReceipt
    from roundlog.training import Receipt

    if isinstance(read, GenerationReceipt):
        return {"kind": "text"} | plain_choice(read), about_text(read)
    if not isinstance(read, Receipt):
        return {"kind": "evaluation"}, about_evaluation(read)
    about: dict[str, object] = {
        "receipt of": "a run" if read.audit is None else "an audit of a run",
        "run id": read.spec.run_id,
        "checkpoint root": read.checkpoint_root,
        "final state root": read.final_state_root,
    }
    return {"kind": "run" if read.audit is None else "audit"}, about


def _about_run(file: Path, read: Receipt, spec: TrainingSpec, found: Repetition, drawn: int) -> Answer:
    """Return the answer on a receipt of a run. drawn: intervals that were repeated, at random."""
    intervals, repeated = spec.intervals, len(found.repeated)

    def unnoticed(wrong: int) -> float:
        """Return the probability, at most, that none of so many wrong intervals is repeated."""
        return prod(max(intervals - drawn - k, 0) / (intervals - k) for k in range(wrong))

    plain = {
        "run_id": read.spec.run_id,
        "checkpoint_root": read.checkpoint_root,
        "intervals": intervals,
        "repeated_intervals": repeated,
        "first_wrong_interval": found.first_wrong,
        "stopped": found.stopped,
        "wrong_states": found.wrong_states,
        "one_wrong_unnoticed": unnoticed(1),
    }
    lines = [f"WRONG: {text}; it was not used." for text in found.wrong_states]
    said = signer_text(read)
    if found.first_wrong is not None:
        first = found.first_wrong * spec.interval
        claimed = read.state_roots[found.first_wrong].hex()
        came = f"stops ({found.stopped})" if found.found is None else f"comes to the state root 0x{found.found.hex()}"
        lines.append(
            f"WRONG: interval {found.first_wrong + 1} of {intervals} (steps {first} to {first + spec.interval - 1}) "
            f"{came}, and {file} says 0x{claimed}."
        )
    elif repeated == intervals:
        lines.append(f"Right: all {repeated} intervals come to the state roots of {file}; {said}.")
    else:
        many = max(2, intervals // 10)
        lines += [
            f"Right as far as it was repeated: {repeated} of {intervals} intervals, drawn at random, come to the state "
            f"roots of {file}; {said}.",
            f"A single wrong interval goes unnoticed with a probability of {100 * unnoticed(1):.3g} %, {many} wrong "
            f"ones with {100 * unnoticed(many):.3g} % at most. Nothing is said about the intervals that were not "
            "repeated: repeat all to be sure.",
        ]
    return Answer(found.first_wrong is None and not found.wrong_states, plain, lines)
