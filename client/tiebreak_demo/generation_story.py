"""The story `text`: a provider answers a question by a language model, an auditor repeats the answer in one pass on
another machine, and a provider whose model has one weight that is one ulp off loses its bond at that weight."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from roundlog.capture import generated_tokens
from roundlog.storage import load_tensors
from roundlog.training import Job, Run

from tiebreak_demo import stories
from tiebreak_demo.adversary.parties import read_slot, weight_lie
from tiebreak_demo.processes import ChildProcesses, Machine
from tiebreak_demo.report import Report, Story, StoryName
from tiebreak_demo.scene import Scene
from tiebreak_demo.screen import Screen
from tiebreak_demo.stage import TERMS, Stage

QUESTION = "What is the capital of France?"
_ANSWER = "Paris."
NEW_TOKENS = 16
FOUND = Path("build/models/SmolLM2-135M-Instruct")
"""Where `make smollm` puts a model that answers, seen from the repository."""
PATIENCE = 3600.0
"""Seconds after which a part of this story has failed: models may be large, and machine B has no vector
instructions."""
_MOST_INTERVALS = 4
_TERMS = replace(TERMS, clock_allowance=12 * 3600, referee_allowance=12 * 3600)
"""An auditor leaves a job whose clocks are too short for the moves of its largest operators on its machine."""


def play(scene: Scene, screen: Screen, report: Report, model: Path | None) -> None:
    """Plays both acts. model: a folder or a GGUF file; None takes the one that is found, or makes one. Raises
    ProcessFailed."""
    folder = _model(scene.directory, screen, model)
    text = _Text(scene, screen, folder)
    with screen.bars():
        text.write()
        text.verify()
        job_dir = text.make_job()
    everyone = [scene.customer, scene.trainer, scene.auditor, scene.referee]
    story = _open(screen, report, "a right text is paid")
    with screen.bars(), Stage(scene, screen, story, everyone, patience=PATIENCE) as stage:
        stories.honest(stage, job_dir, _TERMS)
        tokens = _tokens(Job.read(job_dir), scene.directory / f"model-{stage.job}.safetensors", text.stop)
        stage.expect("the text on the chain is the one that was checked in one pass", text.said, tokens)
    right_root = story.root
    story = _open(screen, report, "one ulp of one weight")
    job = Job.read(job_dir)
    lie = weight_lie(job.program, 0)
    name = read_slot(job.program, lie.operator)
    right = job.initial[name]
    screen.text(
        f"Another provider's model differs in one weight, of {name.removeprefix('parameter/model.')}, by the last bit."
    )
    with screen.bars(), Stage(scene, screen, story, everyone, patience=PATIENCE) as stage:
        stories.changed_weight(stage, job_dir, lie, right, right_root, _TERMS)
        run = Run(job, stage.run_of(scene.trainer, "run"))
        _, states = run.newest(job.spec.intervals)
        wrong = generated_tokens(dict(zip(job.program.state_names, states, strict=True)), text.stop)[0]
        same = "the same words" if wrong == text.said else "other words"
        screen.text(f"Its text has {same}; its state is another one all the same, and that is what is claimed.")


def _model(directory: Path, screen: Screen, given: Path | None) -> Path:
    """The model to play with, which is said."""
    from tiebreak_demo.memorizing_model import write_memorizing_model

    if given is None and FOUND.is_dir():
        given = FOUND
    if given is not None:
        screen.text(f"The model: {given}.")
        return given.resolve()
    made = directory / "memorizing-model"
    weights = write_memorizing_model(made, QUESTION, _ANSWER)
    screen.text(
        f"The model: a Llama of {weights:,} weights that the demo has just trained to answer this one question. "
        "`make smollm` fetches a real one, and --model names any other."
    )
    return made


def _open(screen: Screen, report: Report, title: str) -> Story:
    story = Story(name=StoryName.TEXT, title=title)
    report.stories.append(story)
    screen.heading(f"Story {len(report.stories)}: {title}")
    return story


class _Text:
    """The question, its answer, and what was said of it."""

    def __init__(self, scene: Scene, screen: Screen, model: Path) -> None:
        self._scene, self._screen, self._model = scene, screen, model
        self._receipt = scene.directory / "text.json"
        self.prompt: list[int] = []
        self.tokens: list[int] = []
        self.stop: list[int] = []

    @property
    def said(self) -> list[int]:
        """The tokens without the one that ends the text."""
        return [token for token in self.tokens if token not in self.stop]

    def write(self) -> None:
        """The provider writes the text, with a receipt."""
        scene, words = self._scene, ("--prompt", QUESTION, "--max-new-tokens", str(NEW_TOKENS))
        party = scene.trainer
        found = self._run(party.name, party.machine, "generate", *words, "--receipt", str(self._receipt))
        self.prompt, self.tokens = found["prompt_tokens"], found["tokens"]
        self.stop = json.loads(self._receipt.read_text())["sampling"]["stop_tokens"]
        self._screen.text(f"Asked: {QUESTION}")
        self._screen.line(party.name, f"answers: {found['text']!r}")

    def verify(self) -> None:
        """The auditor repeats it in one pass on another machine. Raises ProcessFailed if it is not right."""
        party = self._scene.auditor
        found = self._run(party.name, party.machine, "verify", str(self._receipt))
        counted = f"all {found['right_tokens']} tokens are right, with the bits of their probabilities"
        self._screen.line(party.name, f"repeats it in one pass on {party.machine.name}: {counted}")

    def make_job(self) -> Path:
        """The job that writes the text, a token a step."""
        steps = len(self.prompt) + NEW_TOKENS - 1
        intervals = max(count for count in range(1, _MOST_INTERVALS + 1) if steps % count == 0)
        out, words = self._scene.directory / "job", ("--prompt", QUESTION, "--max-new-tokens", str(NEW_TOKENS))
        more = ("--interval", str(steps // intervals), "--out", str(out))
        self._run("customer", self._scene.customer.machine, "job", "create", *words, *more)
        return out

    def _run(self, who: str, machine: Machine, *words: str) -> dict[str, Any]:
        """The JSON that a command about the model prints, on a machine."""
        command = [sys.executable, "-P", "-m", "tiebreak.cli.app", *words, "--model", str(self._model), "--json"]
        said = list[str]()
        self._screen.waiting(who, f"tiebreak {' '.join(word for word in words[:2] if word[0] not in '-/')}")
        with ChildProcesses(self._scene.directory) as children:
            children.start(who, command, machine.environment(), said.append)
            children.listen(lambda: children.ended({who}), patience=PATIENCE)
        self._screen.end_bars(who)
        found: dict[str, Any] = json.loads("\n".join(said))
        return found


def _tokens(job: Job, state: Path, stop: list[int]) -> list[int]:
    """The tokens that a state at the end of a job has."""
    return generated_tokens(load_tensors(state, job.program.states), stop)[0]
