"""Text as a job on the command line: made of a folder with a model, trained, audited, and read again."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from roundlog.training.job import Job
from roundlog.training.run_files import checkpoint_path
from tiebreak.cli.app import app
from tiebreak.cli.job_texts import without_controls
from typer.testing import CliRunner

from tests.client.cli.cli_world import Run, Trained, refused
from tests.client.cli.text_world import WORDS, byte_tokenizer, write_model

transformers = pytest.importorskip("transformers")

PROMPTS, NEW = ("Hé?", "So"), 12
DRAWN = ("--temperature", "1", "--top-k", "200", "--top-p", "0.99", "--repetition-penalty", "1.1", "--seed", "7")


@dataclass(frozen=True)
class Generated:
    """A model, a job of it with two prompts, and a run of it. Read only."""

    model: Path
    job: Path
    run: Path
    made: str
    """What the making of it has printed."""


def done(*words: object) -> str:
    """Standard output of a command that succeeds."""
    shown = CliRunner().invoke(app, [str(word) for word in words])
    assert shown.exit_code == 0, shown.output
    return shown.stdout


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    room = tmp_path_factory.mktemp("texts")
    model = write_model(room / "tiny")
    words = ["job", "create", "--model", model, "--out", room / "job", "--max-new-tokens", NEW, "--json"]
    words += ["--interval", 8, *DRAWN]
    made = done(*words, *(word for prompt in PROMPTS for word in ("--prompt", prompt)))
    done("train", room / "job", "--run", room / "run")
    return Generated(model, room / "job", room / "run", made)


@pytest.mark.slow
def test_the_texts_of_a_run_are_those_that_an_audit_comes_to(generated: Generated, run: Run, tmp_path: Path) -> None:
    audited = run("audit", generated.job, "--run", tmp_path / "audit", "--claim", generated.run, "--json")
    assert audited.exit_code == 0, audited.output
    words = ("--model", generated.model)
    found = json.loads(done("job", "text", generated.job, generated.run, *words, "--json"))
    assert found == json.loads(done("job", "text", generated.job, tmp_path / "audit", *words, "--json"))
    assert found["steps"] == found["all_steps"]
    tokenizer = byte_tokenizer()
    for one in found["texts"]:
        assert one["text"] == tokenizer.decode(one["tokens"], skip_special_tokens=True)
        assert 0 not in one["tokens"], "a text ends before the token that stops it"
    # The shorter prompt has more places behind it.
    assert [len(one["prompt_tokens"]) for one in found["texts"]] == [21, 19]
    shown = done("job", "text", generated.job, generated.run, *words)
    assert shown == "".join(f"Text {at} of 2:\n{one['text']}\n" for at, one in enumerate(found["texts"], 1))


def test_a_file_of_others_has_the_texts_if_it_has_the_root(generated: Generated, run: Run, tmp_path: Path) -> None:
    job = Job.read(generated.job)
    whole = Path(shutil.copy(checkpoint_path(generated.run, job.spec.steps), tmp_path / "collected.safetensors"))
    roots = (generated.run / "roots").read_bytes()
    words = ("job", "text", generated.job, whole, "--model", generated.model)
    found = run(*words, "--root", "0x" + roots[-32:].hex(), "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout) == json.loads(
        done("job", "text", generated.job, generated.run, "--model", generated.model, "--json")
    )
    refused(run(*words), "give --root, as `job show` prints it", code=2)
    refused(run(*words, "--root", "0x12"), "a root of 64 hex digits", code=2)
    refused(run(*words, "--root", roots[:32].hex()), f"is not the state of the root 0x{roots[:32].hex()}, but of")
    refused(
        run("job", "text", generated.job, generated.run, "--model", generated.model, "--root", roots[-32:].hex()),
        "leave --root away",
        code=2,
    )
    data = bytearray(whole.read_bytes())
    data[-1] ^= 1
    whole.write_bytes(data)
    refused(run(*words, "--root", roots[-32:].hex()), "is not the state of the root")
    whole.write_bytes(data[:100])
    refused(run(*words, "--root", roots[-32:].hex()), "is no state of this job, since it")


def test_a_job_is_made_of_a_task_or_of_a_model_with_prompts(generated: Generated, run: Run, tmp_path: Path) -> None:
    out, model = ("--out", tmp_path / "job"), ("--model", generated.model)
    refused(run("job", "create", *out), "give a TASK, or a --model", code=2)
    refused(run("job", "create", "digits", *model, "--prompt", "So", *out), "give a TASK, or a --model", code=2)
    refused(run("job", "create", *model, *out), "give --prompt", code=2)
    refused(run("job", "create", "digits", "--seed", 3, *out), "name the model that writes it, --model", code=2)
    refused(run("job", "create", *model, "--prompt", "So", "--set", "steps=2", *out), "leave --set", code=2)


def test_what_is_no_text_of_the_job_is_refused_in_one_sentence(
    generated: Generated, run: Run, trained: Trained, tmp_path: Path
) -> None:
    words = ("--model", generated.model)
    refused(run("job", "text", trained.job, trained.run, *words), "is a job that generates no text")
    refused(run("job", "text", generated.job, trained.run, *words), "names the run of another job, or is damaged")
    other = write_model(tmp_path / "other")
    config = transformers.LlamaConfig.from_pretrained(other)
    config.vocab_size = WORDS + 7
    transformers.LlamaForCausalLM(config).save_pretrained(other)
    said = f"has a vocabulary of {WORDS + 7} tokens, and that of {generated.job} has {WORDS}"
    refused(run("job", "text", generated.job, generated.run, "--model", other), said)


def test_a_text_does_not_control_the_terminal() -> None:
    assert without_controls("a\tb\nc\x1b[2Jd\x9b\r\x7fé") == "a\tb\nc�[2Jd���é"
