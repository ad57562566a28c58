"""Text of a language model as a job, for `tiebreak job create`; and `tiebreak job text`: the texts of its runs."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tiebreak.cli import output
from tiebreak.cli.failures import CommandError, WrongUsage
from tiebreak.cli.generation import DTYPE, ChoiceOptions, WeightFormat, tokens_of_prompt
from tiebreak.cli.job_files import as_root, read_job
from tiebreak.cli.option_groups import JOB, JSON, MEMORY, MODEL, argument, command, option
from tiebreak.cli.text_checks import READS_MODEL, read_model
from tiebreak.generated_text import text_behind, without_controls

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from roundlog.capture import MakeTask, Task
    from roundlog.generation import LoadedModel
    from roundlog.training import Job

_STATES = ("buffer/tokens", "buffer/lengths", "buffer/position")
"""States of a job that generates text: i64[B, L], i64[B], i64[]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextJobOptions:
    """The text that a job generates."""

    panel: ClassVar = "A text of a language model"
    model: Path | None = option(MODEL, metavar="MODEL")
    prompt: list[str] | None = option("A prompt; given several times, a batch of them.", metavar="TEXT")
    raw: bool = option("Take prompts as they are, without the chat template.", False)
    interval: int | None = option("Tokens between checkpoints; default: one at the end.", metavar="N", min=1)
    dtype: WeightFormat | None = DTYPE

    def loader(self, choice: ChoiceOptions) -> Callable[[], MakeTask]:
        """Return what reads the model, and gives the function that makes the task. Raises WrongUsage, CommandError,
        CaptureError for what can be refused before the model is read."""
        model, prompts = self.model, self.prompt or []
        if model is None or not prompts:
            raise WrongUsage("a text begins with a prompt: give --prompt, once or several times.")
        choice.sampling()
        for one in prompts:
            try:
                one.encode()
            except UnicodeEncodeError:  # of surrogates, by which Python keeps bytes that are no text
                raise CommandError("a prompt is no text in UTF-8: convert it.") from None

        def load() -> MakeTask:
            # Tables of positions are computed as the model is read: portably, so that the job is the same everywhere.
            with output.progress("Making a job") as bar:
                bar.tell(READS_MODEL)
                loaded = read_model(model, self.dtype)
            tokens = [tokens_of_prompt(loaded, one, raw=self.raw) for one in prompts]
            return functools.partial(_generation, loaded, tokens, self.interval, choice)

        return load


def _generation(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], interval: int | None, choice: ChoiceOptions
) -> Task:
    """Return the task of prompts. Raises CaptureError."""
    from roundlog.capture import Task, paused

    with paused():  # what it computes is compared, and is no part of the job
        return Task.from_causal_lm(
            loaded.model,
            prompts,
            new_tokens=choice.max_new_tokens,
            **dataclasses.asdict(choice.sampling()),
            stop=loaded.stop,
            seed=choice.seed,
            interval=interval,
        )


@command(
    "job text",
    "tiebreak job text job run --model SmolLM2-135M-Instruct",
    "tiebreak job text job collected.safetensors --root 0x... --model SmolLM2-135M-Instruct",
)
def text(
    directory: Path = JOB,
    run: Path = argument(
        "RUN|FILE", "Directory of a run of it, as `train` keeps it, or a state as `job collect` fetches it."
    ),
    model: Path = option(MODEL, ..., "MODEL"),
    root: str | None = option(
        "State root in hex that a FILE has to have: the final one, as `status` prints it.", metavar="ROOT"
    ),
    max_memory: int = MEMORY,
    *,
    json: bool = JSON,
) -> None:
    """Print the texts that a run of a job has generated, up to its newest checkpoint.

    A file, which others have made, is held against the root that the chain has for the job, every bit of it.
    """
    from roundlog.capture import generated_tokens

    job = read_job(directory, max_memory)
    _require_texts(directory, job)
    steps, state = _state_of_file(run, root, job) if run.is_file() else _state_of_run(run, root, job)
    loaded = read_model(model, None)
    tokens, lengths = _written(directory, state, loaded)
    found = generated_tokens({"buffer/tokens": tokens, "buffer/lengths": lengths}, loaded.stop)
    prompts = [row[:length] for row, length in zip(tokens.tolist(), lengths.tolist(), strict=True)]
    texts = [text_behind(loaded.tokenizer, *both) for both in zip(prompts, found, strict=True)]
    if json:
        output.show_json(
            {
                "steps": steps,
                "all_steps": job.spec.steps,
                "texts": [
                    {"text": said, "prompt_tokens": prompt, "tokens": new}
                    for said, prompt, new in zip(texts, prompts, found, strict=True)
                ],
            }
        )
        return
    for number, said in enumerate(texts, 1):
        if len(texts) > 1:
            output.show_line(f"Text {number} of {len(texts)}:")
        sys.stdout.write((without_controls(said) if sys.stdout.isatty() else said) + "\n")
    if steps < job.spec.steps:
        output.warn(f"the newest checkpoint of {run} is after {steps} of {job.spec.steps} steps: texts may go on.")


def _state_of_run(run: Path, root: str | None, job: Job) -> tuple[int, Mapping[str, torch.Tensor]]:
    """Return (steps, state) of the newest checkpoint of a run. Raises WrongUsage, CommandError."""
    from roundlog.training import Run

    if not (run / "run.json").is_file():
        raise CommandError(f"{run} is no directory of a run: let `tiebreak train` generate the text there.")
    if root is not None:
        raise WrongUsage(f"{run} is a run, which has roots of its own: leave --root away.")
    done, states = Run(job, run).newest(job.spec.intervals)
    if not done:
        raise CommandError(f"{run} has no checkpoint yet: let `tiebreak train` go on there.")
    return min(done * job.spec.interval, job.spec.steps), dict(zip(job.program.state_names, states, strict=True))


def _state_of_file(file: Path, root: str | None, job: Job) -> tuple[int, Mapping[str, torch.Tensor]]:
    """Return (steps, state) in a stranger's file, which has the root. Raises WrongUsage, CommandError."""
    from roundlog.storage import load_tensors
    from roundlog.training import wrong_state

    wanted = as_root(root) if root is not None else None
    if wanted is None:
        raise WrongUsage(f"what {file} has to be says a root of 64 hex digits: give --root, as `status` prints it.")
    if (why := wrong_state(file, job.program, wanted)) is not None:
        raise CommandError(
            f"{file} is not the state that was asked for: {why}; fetch it again, or give the root that the "
            "chain has for the job."
        )
    state = load_tensors(file, job.program.states)
    # A step moves the position by one; a root of steps before the last one is a state, too.
    return int(state["buffer/position"]), state


def _require_texts(directory: Path, job: Job) -> None:
    """Refuse a job that generates no text. Raises CommandError."""
    kinds = [job.program.states.get(name) for name in _STATES]
    shapes = [None if kind is None or str(kind.dtype) != "i64" else tuple(kind.shape) for kind in kinds]
    tokens, lengths, position = shapes
    if tokens is None or len(tokens) != 2 or lengths != tokens[:1] or position != ():
        raise CommandError(f"{directory} is a job that generates no text: make one with `tiebreak job create --model`.")


def _written(
    directory: Path, state: Mapping[str, torch.Tensor], loaded: LoadedModel
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens up to the last one written, i64[B, at most L], and lengths of prompts, i64[B]. Raises
    CommandError for those of another model's vocabulary, and for numbers that no generation ends with."""
    tokens, lengths, position = (state[name] for name in _STATES)
    embedding = loaded.model.get_input_embeddings().weight
    name = next(name for name, one in loaded.model.named_parameters() if one is embedding)
    theirs = state.get(f"parameter/model.{name}")
    size = len(embedding)
    if theirs is None or len(theirs) != size:
        has = "none of this name" if theirs is None else f"{len(theirs)}"
        raise CommandError(
            f"the model of the folder has a vocabulary of {size} tokens, and that of {directory} has {has}: give the "
            "model that the job was made of."
        )
    written = tokens[:, : int(position) + 1]
    if not (0 <= int(position) < tokens.shape[1] and ((lengths > 0) & (lengths <= tokens.shape[1])).all()):
        raise CommandError(f"the run's position or lengths of prompts are of no text: {directory} is no generation.")
    if not ((written >= 0) & (written < size)).all():
        raise CommandError(f"the run has tokens that are none of the model's {size}: give the model of {directory}.")
    return written, lengths
