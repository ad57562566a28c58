"""The story `text`: a provider answers a question by a language model, an auditor repeats the answer in one pass on
another machine, and a provider whose model has one weight that is one ulp off loses its bond at that weight."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from roundlog.capture import generated_tokens
from roundlog.storage import load_tensors
from roundlog.training import Job, Run
from tiebreak.contract.enums import Level
from tiebreak.contract.events import ElementProven

from tiebreak_demo import stories
from tiebreak_demo.adversary.parties import read_slot, weight_lie
from tiebreak_demo.processes import ChildProcesses
from tiebreak_demo.report import Report, StoryName
from tiebreak_demo.scene import TIEBREAK, Party, Scene
from tiebreak_demo.screen import Screen
from tiebreak_demo.stories import TERMS, StoryPlayer

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
    """Play both acts. model: a folder or a GGUF file; None takes the one that is found, or makes one. Raises
    ProcessFailed."""
    folder, job_dir = _model(scene.directory, screen, model), scene.directory / "job"
    words = ("--prompt", QUESTION, "--max-new-tokens", str(NEW_TOKENS))
    receipt = scene.directory / "text.json"

    def run(party: Party, *words: str) -> dict[str, Any]:
        """Return the JSON that a command about the model prints, on the party's machine."""
        command, said = [*TIEBREAK, *words, "--model", str(folder), "--json"], list[str]()
        screen.bar(party.name, f"tiebreak {' '.join(word for word in words[:2] if word[0] not in '-/')}")
        with ChildProcesses(scene.directory) as children:
            children.start(party.name, command, party.machine.environment(), said.append)
            children.listen(children.ended, patience=PATIENCE)
        screen.end_bars(party.name)
        found: dict[str, Any] = json.loads("\n".join(said))
        return found

    with screen.bars():
        written = run(scene.trainer, "generate", *words, "--receipt", str(receipt))
        screen.text(f"Asked: {QUESTION}")
        screen.line(scene.trainer.name, f"answers: {written['text']!r}")
        verified = run(scene.auditor, "verify", str(receipt))
        counted = f"all {verified['right_tokens']} tokens are right, with the bits of their probabilities"
        screen.line(scene.auditor.name, f"repeats it in one pass on {scene.auditor.machine.name}: {counted}")
        # The job that writes the text, a token a step.
        steps = len(written["prompt_tokens"]) + NEW_TOKENS - 1
        intervals = max(count for count in range(1, _MOST_INTERVALS + 1) if steps % count == 0)
        more = ("--interval", str(steps // intervals), "--out", str(job_dir))
        run(scene.customer, "job", "create", *words, *more)
    stop = json.loads(receipt.read_text())["sampling"]["stop_tokens"]
    text = [token for token in written["tokens"] if token not in stop]
    job = Job.read(job_dir)
    lie = weight_lie(job.program, 0)
    name = read_slot(job.program, lie.operator)

    def check_text(player: StoryPlayer) -> None:
        stories.expect_same_on_both(player)
        tokens = generated_tokens(load_tensors(player.model, job.program.states), stop)[0]
        player.expect("the text on the chain is the one that was checked in one pass", text, tokens)

    def check_weight(player: StoryPlayer) -> None:
        number, game = player.game_of(scene.auditor)
        player.expect("and the operator that reads it", lie.operator, game.levels[Level.OPERATOR].index)
        (proof,) = [one for one in scene.contract.events(game=number) if isinstance(one, ElementProven)]
        weight = job.initial[name]
        pattern = {2: torch.uint16, 4: torch.uint32}[weight.dtype.itemsize]
        right = int(weight.reshape(-1)[lie.element].view(pattern))
        player.expect(
            f"at element {lie.element} of {weight.numel():,} the contract has the model's bits, the provider is an ulp "
            "off",
            (lie.element, f"{right:#x}", f"{right ^ 1:#x}"),
            (proof.element, f"{proof.bits:#x}", f"{proof.claimed:#x}"),
        )
        _, states = Run(job, player.run_of(scene.trainer, "run")).newest(job.spec.intervals)
        wrong = generated_tokens(dict(zip(job.program.state_names, states, strict=True)), stop)[0]
        same = "the same words" if wrong == text else "other words"
        screen.text(f"Its text has {same}; its state is another one all the same, and that is what is claimed.")

    options = {"terms": _TERMS, "patience": PATIENCE}
    right = stories.honest(scene, StoryName.TEXT, "a right text is paid", **options)
    wrong = stories.dishonest(
        scene,
        StoryName.TEXT,
        "one ulp of one weight",
        introduction="Another provider's model differs in one weight, of "
        f"{name.removeprefix('parameter/model.')}, by the last bit.",
        kind="weight",
        step=lie.step,
        where="in which that weight is read",
        **options,
    )
    root = stories.play(scene, screen, report, right, job_dir, more=check_text)
    stories.play(scene, screen, report, wrong, job_dir, right_root=root, more=check_weight)


def _model(directory: Path, screen: Screen, given: Path | None) -> Path:
    """Return the model to play with, and show it."""
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
