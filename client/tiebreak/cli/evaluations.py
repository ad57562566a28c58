"""`tiebreak evaluate`, and what `tiebreak verify` does with the receipt of an evaluation."""

from __future__ import annotations

import secrets
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tiebreak.cli import output
from tiebreak.cli.failures import CommandError, WrongUsage, extra
from tiebreak.cli.generation import ARITHMETIC, DTYPE, WeightFormat
from tiebreak.cli.option_groups import JSON, MODEL, command, option
from tiebreak.cli.posted_receipts import BlockBeacon, read_beacon
from tiebreak.cli.receipt_files import Answer, SigningOptions, signer_text
from tiebreak.cli.text_checks import READS_MODEL, read_model
from tiebreak.generated_text import with_unseen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from roundlog.generation import LoadedModel

    from tiebreak.cli.network import ChainOptions
    from tiebreak.evaluation.engine_model import Answers
    from tiebreak.evaluation.evaluation_receipt import EvaluationReceipt, EvaluationRequest
    from tiebreak.evaluation.task_files import TaskFile

TASKS = option("YAML file of a task of lm-eval, with its data beside it. Repeatable.", None, "FILE", name="--tasks")


@command(
    "evaluate",
    "tiebreak evaluate --model SmolLM2-135M-Instruct --tasks arc.yaml --receipt eval.json",
    "tiebreak evaluate --model SmolLM2-135M-Instruct --tasks arc.yaml --tasks poems.yaml --receipt eval.json --limit 9",
)
def evaluate(
    model: Path = option(MODEL, ..., "MODEL"),
    tasks: list[Path] | None = TASKS,
    receipt: Path = option("File for the receipt, which `verify` takes.", ..., "FILE"),
    limit: int | None = option("Documents of each task, the first ones; without it all.", metavar="N", min=1),
    dtype: WeightFormat | None = DTYPE,
    arithmetic: Any = ARITHMETIC,
    *,
    signing: SigningOptions,
    json: bool = JSON,
) -> None:
    """Evaluate a model in tasks of `lm-eval`, and write a receipt from which anybody derives the same scores.

    Scores depend on no machine, no batch and no order. A task is the YAML file that lm-eval takes, without code and
    with data in files beside it. The receipt has every answer: `tiebreak verify` derives all of it again, or a share.
    """
    from tiebreak.evaluation.evaluation_receipt import EvaluatedTask, EvaluationReceipt, requests_root

    with extra("eval", "evaluations need"):
        from tiebreak.evaluation.engine_model import LM_EVAL_VERSION, Answers

    if not tasks:
        raise WrongUsage("there is no task: name the YAML file of one with --tasks.")
    if not receipt.parent.is_dir():
        raise CommandError(f"there is no directory {receipt.parent} for the receipt: make it.")
    writer = signing.writer()
    started = time.monotonic()
    answers = Answers()
    with _tasks(tasks) as found:
        loaded = read_model(model, dtype)
        scores = _scores(loaded, arithmetic, answers, found, limit)
    from roundlog.generation.receipt_check import dtype_name, versions_with

    made = EvaluationReceipt(
        model=loaded.identity,
        dtype=dtype_name(loaded.model),
        arithmetic=arithmetic,
        versions=versions_with(version("tiebreak")) | {"lm_eval": LM_EVAL_VERSION},
        limit=limit,
        tasks=tuple(
            EvaluatedTask(name=task.name, config_sha256=task.config_sha256, data=task.data, scores=score)
            for task, score in zip(found, scores, strict=True)
        ),
        answers=tuple(answers.given),
        requests_root=requests_root(answers.requests, answers.given),
    )
    written = writer.write(receipt, made, model=model)
    if json:
        facts: dict[str, object] = {"scores": {task.name: dict(task.scores) for task in made.tasks}}
        facts |= {"requests": len(made.answers), "receipt": receipt, "digest": written.digest, "signer": written.signer}
        output.show_json(facts | {"seconds": round(time.monotonic() - started, 3)})
        return
    for task in made.tasks:
        output.show_facts(task.name, dict(task.scores))
    output.warn(
        f"{len(made.answers)} requests. Receipt in {receipt}, digest 0x{written.digest.hex()}; {signer_text(written)}."
    )


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Options of the check of an evaluation's receipt; its model and its share are other receipts', too."""

    panel: ClassVar = "The receipt of an evaluation"
    tasks: list[Path] | None = TASKS
    seed: str | None = option(
        "Seed that draws the share: a number of your own that its author could not know, or a block's hash. Without it "
        "one is drawn.",
        metavar="SEED",
    )
    beacon: Literal["chain"] | None = option(
        "Draw the share by the hash of the 32nd block after that in which its signer has posted the receipt, with "
        "--posted and, as for all commands about a chain, --chain and --confirmations."
    )
    posted: str | None = option("Transaction that has posted it, as `post` prints it.", metavar="HASH")

    def check(
        self, file: Path, read: EvaluationReceipt, model: Path, share: float | None, chain: ChainOptions
    ) -> Answer:
        """Repeat an evaluation, or a share of its answers. Raises CommandError, TaskError, FolderError."""
        from tiebreak.evaluation.evaluation_receipt import drawn_requests, largest_unnoticed

        with extra("eval", "evaluations need"):
            from tiebreak.evaluation.engine_model import LM_EVAL_VERSION

        total, beacon = len(read.answers), None
        if (self.beacon, self.posted) != (None, None):
            if self.beacon is None or self.posted is None or share is None or self.seed is not None:
                raise WrongUsage("a chain draws a share: give --share, --beacon chain, --posted HASH, and no --seed.")
            beacon = read_beacon(chain.connect_final(), self.posted, read)
        seed = beacon.seed if beacon is not None else self.seed or str(secrets.randbits(64))
        count = total if share is None else max(1, round(share * total))
        if read.versions["lm_eval"] != LM_EVAL_VERSION:
            raise CommandError(
                f"{file} was written with lm-eval {read.versions['lm_eval']}, and this is {LM_EVAL_VERSION}, which may "
                f"ask for other things: pip install lm-eval=={read.versions['lm_eval']}"
            )
        drawn = drawn_requests(seed, read.digest, total, count)
        with _tasks(self.tasks or ()) as tasks:
            wrong = _other_tasks(read, tasks) or _repeated(file, read, model, tasks, drawn)
        bound = largest_unnoticed(total, count, 20 if beacon is None else beacon.odds)
        facts: dict[str, object] = {"wrong": wrong, "requests": total, "repeated": count}
        facts |= {"seed": seed if share is not None else None, "most_wrong_at_95_percent": bound}
        facts["beacon"] = asdict(beacon) if beacon is not None else None
        lines = [f"WRONG: {file}: {clause}." for clause in wrong] or _about_right(
            file, read, count, bound, seed, beacon
        )
        return Answer(not wrong, facts, lines)


def _repeated(
    file: Path, read: EvaluationReceipt, model: Path, tasks: Sequence[TaskFile], drawn: frozenset[int]
) -> list[str]:
    """Return clauses on what a model and lm-eval derive otherwise than the receipt in a file. drawn: places of the
    answers that the model repeats. Raises CommandError for another model, TaskError, FolderError."""
    from roundlog.generation import other_model

    from tiebreak.evaluation.engine_model import Answers, WrongCountError
    from tiebreak.evaluation.evaluation_receipt import requests_root

    loaded = read_model(model, read.dtype)
    if (other := other_model(read.model, loaded)) is not None:
        raise CommandError(f"{file} is of another model than that in {model}: its {other} is another.")
    answers = Answers(read.answers, drawn)
    try:
        wrong = _other_scores(read, _scores(loaded, read.arithmetic, answers, tasks, read.limit))
        if requests_root(answers.requests, answers.given) != read.requests_root:
            wrong.append("its requests and answers have another root than requests_root")
        _warn_of_unseen(loaded, answers.requests)
    except WrongCountError:
        wrong = [f"it has {len(read.answers)} answers, and its tasks have another number of requests"]
    if answers.first_wrong is not None and answers.right is not None:
        where = f"request {answers.first_wrong + 1} has the answer {read.answers[answers.first_wrong].plain()}"
        wrong.insert(0, f"{where}, and the model's is {answers.right.plain()}")
    return wrong


def _warn_of_unseen(loaded: LoadedModel, requests: Sequence[EvaluationRequest]) -> None:
    """Tell of the first request whose text shows as another one."""
    from roundlog.generation import token_text

    for number, request in enumerate(requests, 1):
        text = token_text(loaded.tokenizer, [*request.prompt, *request.continuation])
        if (shown := with_unseen(text)) != text:
            at = next(place for place, (one, two) in enumerate(zip(text, shown, strict=False)) if one != two)
            part = shown[max(0, at - 40) : at + 80]
            output.warn(f"Request {number} has characters that are not seen, here by their numbers: {part!r}.")
            return


def _about_right(
    file: Path, read: EvaluationReceipt, count: int, bound: int, seed: str, beacon: BlockBeacon | None
) -> list[str]:
    """Return the answer on a receipt that is right, for people."""
    total = len(read.answers)
    which = f"all {total}" if count == total else f"{count} of {total}"
    lines = [
        f"Right: the model gives {which} answers of {file}, and its scores and its root follow from all of them; "
        f"{signer_text(read)}."
    ]
    if count < total:
        lines.append(
            f"The {total - count} others were not repeated. If more than {bound} of all were wrong "
            f"({100 * bound / total:.2g} %), one would have been met with 95 %. The seed {seed} has drawn the share. "
            f"{beacon or 'If the author knew it before, the share shows nothing.'}"
        )
    if read.limit is not None:
        lines.append(f"Of each task the first {read.limit} documents alone were evaluated.")
    name = read.model.name
    return [*lines, f"Its model's name, {name!r}, is the author's word; its hashes are those of your model."]


def about_evaluation(read: EvaluationReceipt) -> dict[str, object]:
    """Return facts of a receipt, for people."""
    name = f"{read.model.name} (its author's word), in {read.dtype}, products {read.arithmetic}"
    found: dict[str, object] = {"receipt of": f"an evaluation by {len(read.answers)} requests", "model": name}
    return found | {f"{task.name}: {name}": score for task in read.tasks for name, score in task.scores.items()}


def _scores(
    loaded: LoadedModel, arithmetic: str, answers: Answers, tasks: Sequence[TaskFile], limit: int | None
) -> list[dict[str, float]]:
    from tiebreak.evaluation.engine_model import EngineModel, evaluate_tasks

    with output.progress("Evaluating", 0) as bar:
        bar.tell(READS_MODEL)
        return evaluate_tasks(
            EngineModel(loaded, arithmetic, answers, lambda done, total: bar.tell(f"answer {done} of {total}")),
            tasks,
            limit,
        )


def _other_tasks(read: EvaluationReceipt, found: Sequence[TaskFile]) -> list[str]:
    """Return clauses on tasks that are not the receipt's."""
    if [task.name for task in found] != [task.name for task in read.tasks]:
        named = ", ".join(task.name for task in read.tasks)
        raise WrongUsage(f"the receipt is of the tasks {named}: give the file of each with --tasks, in this order.")
    wrong = []
    for task, claimed in zip(found, read.tasks, strict=True):
        if task.config_sha256 != claimed.config_sha256:
            wrong.append(f"the configuration of task {task.name} has another SHA-256 than the receipt's")
        wrong += [
            f"the data {name} of task {task.name} have another SHA-256 than the receipt's"
            for name in sorted(task.data.keys() | claimed.data.keys())
            if task.data.get(name) != claimed.data.get(name)
        ]
    return wrong


def _other_scores(read: EvaluationReceipt, scores: Sequence[dict[str, float]]) -> list[str]:
    """Return clauses on scores that do not follow from the answers."""
    return [
        f"{name} of task {task.name} is {task.scores.get(name)}, and by its answers {found.get(name)}"
        for task, found in zip(read.tasks, scores, strict=True)
        for name in sorted(found.keys() | task.scores.keys())
        if found.get(name) != task.scores.get(name)
    ]


@contextmanager
def _tasks(paths: Sequence[Path]) -> Iterator[list[TaskFile]]:
    """Read tasks, with copies of their data as long as the block lasts. Raises TaskError."""
    from tiebreak.evaluation.task_files import read_task

    with TemporaryDirectory(prefix="tiebreak-tasks-") as temporary:
        rooms = [Path(temporary) / str(number) for number in range(len(paths))]
        for room in rooms:
            room.mkdir()
        yield [read_task(path, room) for path, room in zip(paths, rooms, strict=True)]
