"""Folders of language models: one of a trained model, for the Hub with a card, the receipt of the run, an evaluation
and a signature (`tiebreak export --hub-folder`)."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer

from tiebreak.cli import network, output
from tiebreak.cli.failures import ANSWER_IS_NO, CommandError, WrongUsage
from tiebreak.cli.option_groups import option
from tiebreak.cli.receipt_files import (
    SIGNING_KEY,
    ReceiptForm,
    SigningOptions,
    read_receipt_file,
    read_receipt_of_run,
    wrong_signature,
)
from tiebreak.cli.text_checks import read_model

if TYPE_CHECKING:
    from roundlog.generation import LoadedModel, ModelIdentity
    from roundlog.training import Receipt

    from tiebreak.cli.receipt_files import AnyReceipt
    from tiebreak.evaluation.evaluation_receipt import EvaluationReceipt

RECEIPT_NAME, EVALUATION_NAME, SIGNATURE_NAME = "training.json", "evaluation.json", "model.sig"


@dataclass(frozen=True, kw_only=True)
class HubOptions:
    """Options of a folder for the Hub."""

    panel: ClassVar = "A folder for the Hub"
    hub_folder: Path | None = option(
        "Folder for the language model with configuration and tokenizer, and with --receipt a card, receipt and "
        "signature; made, or empty.",
        metavar="DIR",
    )
    job: Path | None = option("Directory of the job that it was trained by.", metavar="JOB")
    base: Path | None = option(
        "The model that it was trained from: configuration and tokenizer are taken.", metavar="MODEL"
    )
    receipt: Path | None = option("Receipt of the run, whose final state this has to be.", metavar="FILE")
    evaluation: Path | None = option("Receipt of an evaluation of this model, for the card.", metavar="FILE")
    address: str | None = option("Content address of the published log, for the card.", metavar="ADDRESS")
    sign: bool = network.SIGN
    keystore: Path | None = network.KEYSTORE
    signing_key: Path | None = SIGNING_KEY

    def write(self, source: Path, max_memory: int, json: bool) -> None:
        """Write the folder, whole or not at all. Raises WrongUsage, CommandError, ReceiptError, StatementError,
        AccountError, SigningKeyError, FolderError, OSError."""
        from roundlog.generation import save_model

        if self.hub_folder is None or self.job is None or self.base is None:
            raise WrongUsage("a folder for the Hub is of a run's job and base: give --hub-folder, --job and --base.")
        is_signed, writer = self.sign or self.signing_key is not None, None
        if self.receipt is None and (is_signed or self.evaluation is not None or self.address is not None):
            raise WrongUsage("a card and a signature are about a run: name its receipt with --receipt.")
        if self.address is not None and not re.fullmatch("[0-9A-Za-z]{8,100}", self.address):
            raise WrongUsage(f"{self.address[:80]!r} is no content address: give the one that `train` has printed.")
        if is_signed:
            form = ReceiptForm.MODEL_SIGNING
            options = SigningOptions(sign=self.sign, keystore=self.keystore, signing_key=self.signing_key, form=form)
            writer = options.writer()
        named = None if self.receipt is None else read_receipt_of_run(self.receipt)
        if self.receipt is not None and named is not None:
            _check_signature(self.receipt, named)
        state, loaded = trained_model(source, self.job, self.base, named, self.receipt, max_memory)
        with new_folder(self.hub_folder) as room:
            made = save_model(loaded, room)
            if named is not None:
                evaluation = None if self.evaluation is None else evaluation_of(self.evaluation, made)
                named.write(room / RECEIPT_NAME)
                if evaluation is not None:
                    (room / EVALUATION_NAME).write_text(evaluation.to_json())
                card = model_card(room.name, named, made, evaluation, self.address, is_signed=is_signed)
                (room / "README.md").write_text(card)
                if writer is not None:
                    writer.write(room / SIGNATURE_NAME, replace(named, signer=None, signature=None), model=room)
            files = sorted(path.name for path in room.iterdir())
        plain = {"model": self.hub_folder, "state": state, "model_weight_hash": made.model_weight_hash, "files": files}
        output.show_result(json, plain, f"Model in {self.hub_folder}")


def trained_model(
    source: Path, job: Path, base: Path, receipt: Receipt | None, receipt_file: Path | None, max_memory: int
) -> tuple[Path, LoadedModel]:
    """Return the file of a run's state, and the base with the weights trained in it. receipt: of the run, whose final
    state it has to be; exit code 3 if it is another. Raises CommandError, JobError, FolderError."""
    from roundlog.generation import set_weights, trained_weights, weight_root
    from roundlog.storage import load_tensors
    from roundlog.training import read_program, trained_state, wrong_state

    program, spec = read_program(job)
    if (need := 4 * sum(kind.nbytes for kind in program.states.values())) > max_memory:
        raise CommandError(f"reading a state of this job takes up to {need} bytes: allow them with --max-memory.")
    file = trained_state(source).path
    if receipt is not None:
        if receipt.spec != spec:
            raise CommandError(f"{receipt_file} is of another run than the job in {job}: give the job that it is of.")
        if (why := wrong_state(file, program, receipt.final_state_root)) is not None:
            output.show_line(f"WRONG: {file} is not the final state of {receipt_file}: {why}.")
            raise typer.Exit(ANSWER_IS_NO)
    weights = trained_weights(program, load_tensors(file, program.states))
    loaded = read_model(base, None)
    set_weights(loaded.model, weights)
    return file, replace(loaded, identity=replace(loaded.identity, model_weight_hash=weight_root(loaded.model)))


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Make a folder beside `out` that takes its name once it is full. Raises CommandError, OSError."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CommandError(f"{out} is there already, and not an empty folder: name another one.")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as name:
        room = Path(name) / out.name
        room.mkdir()
        yield room
        room.replace(out)


def evaluation_of(file: Path, model: ModelIdentity) -> EvaluationReceipt:
    """Return the receipt in a file, which has to be of an evaluation of a model. Raises CommandError, ReceiptError."""
    from tiebreak.evaluation.evaluation_receipt import EvaluationReceipt

    found = read_receipt_file(file).receipt
    hashes = ("model_weight_hash", "config_hash", "tokenizer_hash")
    if not isinstance(found, EvaluationReceipt):
        raise CommandError(f"{file} is no receipt of an evaluation: make one with `tiebreak evaluate`.")
    _check_signature(file, found)
    if other := [name for name in hashes if getattr(found.model, name) != getattr(model, name)]:
        raise CommandError(f"{file} is of another model than the run's: its {other[0]} is another; evaluate this one.")
    return found


def _check_signature(file: Path, receipt: AnyReceipt) -> None:
    if (fault := wrong_signature(receipt, None)) is not None:
        raise CommandError(f"{file} is not its signer's ({fault}): get it again from its author.")


def model_card(
    name: str,
    receipt: Receipt,
    model: ModelIdentity,
    evaluation: EvaluationReceipt | None,
    address: str | None,
    *,
    is_signed: bool,
) -> str:
    """Return the README.md of a model's folder: roots, hashes, scores, and lines by which a stranger checks them."""
    spec = receipt.spec
    rows = {
        "data root": spec.data_root,
        "program root": spec.program_root,
        "run id": spec.run_id,
        "checkpoint root": receipt.checkpoint_root,
        "final state root": receipt.final_state_root,
        "model weight hash": model.model_weight_hash,
        "receipt of the run": receipt.digest,
    }
    table = [f"| {what} | `0x{root.hex()}` |" for what, root in rows.items()]
    lines = [
        f"tiebreak verify {RECEIPT_NAME} --job JOB --dir work                # repeats the whole training",
        f"tiebreak export work --hub-folder again --job JOB --base BASE --receipt {RECEIPT_NAME}     # these weights",
    ]
    if address is not None:
        lines.insert(
            0, f"tiebreak audit {address} --share 1 --store gateway+https://GATEWAY     # with nothing but this"
        )
    if is_signed:
        lines.append(f"model_signing verify key . --signature {SIGNATURE_NAME} --public_key KEY   # these files")
    scores = []
    if evaluation is not None:
        rows = {"digest of the evaluation": evaluation.digest, "requests root": evaluation.requests_root}
        table += [f"| {what} | `0x{root.hex()}` |" for what, root in rows.items()]
        lines.append(
            f"tiebreak verify {EVALUATION_NAME} --model . --tasks FILE              # derives the scores again"
        )
        scores = ["## Scores", "", "| task | metric | score |", "|---|---|---|"]
        scores += [
            f"| {_cell(task.name)} | {_cell(metric)} | {score!r} |"
            for task in evaluation.tasks
            for metric, score in task.scores.items()
        ]
        first = "all documents" if evaluation.limit is None else f"the first {evaluation.limit} documents of each task"
        scores += ["", f"By lm-eval {_cell(evaluation.versions['lm_eval'])}, on {first}.", ""]
    head = ["---", "library_name: transformers", "tags: [tiebreak]", "---", "", f"# {_cell(name)}", ""]
    claim = f"Trained by {spec.steps} steps that anybody can repeat to the bit, on any machine:"
    return "\n".join([*head, claim, "", "```sh", *lines, "```", "", "| | |", "|---|---|", *table, "", *scores])


def _cell(text: str) -> str:
    """Return a text of others that nothing of Markdown or HTML can be made of."""
    return re.sub(r"[^\w .,:+-]", "?", text)[:200]
