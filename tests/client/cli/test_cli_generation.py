"""`tiebreak generate`, and what `verify` says of its receipts: right ones, changed ones, hostile ones."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import roundlog.generation
import torch
from roundlog.training.job import Job
from roundlog.training.run_files import checkpoint_path
from tiebreak.cli.app import app
from tiebreak.transactions.keys import devnet_account
from typer.testing import CliRunner

from tests.client.cli.cli_world import Run, Trained, refused
from tests.client.cli.text_world import byte_tokenizer, edited, generators_kept, read, write_model
from tests.engine.generation.small_gguf import write_gguf

pytest.importorskip("transformers")

KEY = {"TIEBREAK_PRIVATE_KEY": bytes(devnet_account(3).key).hex()}
SIGNER = devnet_account(3).address
PROMPT, NEW = "Hé?", 8
DRAWN = ("--temperature", "1", "--top-k", "200", "--top-p", "0.99", "--repetition-penalty", "1.1", "--seed", "7")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@pytest.fixture(scope="module", autouse=True)
def captured_once() -> Iterator[None]:
    with generators_kept():
        yield


@dataclass(frozen=True)
class Text:
    """A model, and what `generate` has said of it. Read only."""

    model: Path
    receipt: Path
    stdout: str
    stderr: str

    @property
    def plain(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.receipt.read_text())
        return found


def text_of(room: Path, dtype: str) -> Text:
    model = write_model(room / "tiny", DTYPES[dtype], cancels=dtype == "bf16")
    words = ["generate", "--model", model, "--prompt", PROMPT, "--max-new-tokens", NEW, *DRAWN]
    words += ["--receipt", room / "text.json", "--sign"]
    shown = CliRunner().invoke(app, [str(word) for word in words], env=KEY)
    assert shown.exit_code == 0, shown.output
    return Text(model, room / "text.json", shown.stdout, shown.stderr)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Text:
    return text_of(tmp_path_factory.mktemp("text"), "fp32")


@pytest.fixture
def text(whole: Text, tmp_path: Path) -> Text:
    """The text in FP32, with a copy of its receipt."""
    return Text(whole.model, Path(shutil.copy(whole.receipt, tmp_path / "text.json")), whole.stdout, whole.stderr)


@pytest.mark.slow_but("fp32")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_text_is_streamed_and_its_receipt_is_right(run: Run, whole: Text, tmp_path: Path, dtype: str) -> None:
    text = whole if dtype == "fp32" else text_of(tmp_path, dtype)
    plain, tokenizer = text.plain, byte_tokenizer()
    assert text.stdout == tokenizer.decode(plain["tokens"], skip_special_tokens=True) + "\n"
    assert plain["prompt_tokens"] == tokenizer(f"<user>{PROMPT}<assistant>")["input_ids"]
    assert plain["model"]["dtype"] == dtype and plain["model"]["name"] == "tiny"
    assert plain["token_count"] == NEW and plain["sampling"]["stop_tokens"] == [0]
    assert f"{NEW} new tokens behind {len(plain['prompt_tokens'])}" in text.stderr and SIGNER in text.stderr
    shown = json.loads(run("verify", text.receipt, "--offline", "--json").stdout)
    assert shown["valid"] and shown["kind"] == "text" and shown["digest"] in text.stderr
    for more in ((), ("--by-token",)):
        right = run("verify", text.receipt, "--model", text.model, "--signer", SIGNER, *more)
        assert right.exit_code == 0, right.output
        assert right.stdout.startswith(f"Right: the model chooses all {NEW} tokens") and SIGNER in right.stdout
        assert "Its name in the receipt, 'tiny', is the author's word" in right.stdout
    assert "tiny (its author's word)" in run("verify", text.receipt, "--offline").stdout
    found = json.loads(run("verify", text.receipt, "--model", text.model, "--json").stdout)
    assert found["right"] and found["right_tokens"] == NEW and found["digest"] == shown["digest"]
    assert found["unchecked"] == ["model.name", "model.revision", "versions"]


def other_token(text: Text, place: int) -> list[int]:
    tokens = list(text.plain["tokens"])
    tokens[place] = 5 if tokens[place] != 5 else 6
    return tokens


def test_a_changed_token_is_named_with_the_one_that_is_right(run: Run, text: Text) -> None:
    right, place = text.plain["tokens"], NEW - 1
    edited(text.receipt, {"tokens": other_token(text, place)})
    for more in ((), ("--by-token",)):
        result = run("verify", text.receipt, "--model", text.model, *more)
        assert result.exit_code == 3
        assert f"WRONG: token {place + 1} of {NEW} in {text.receipt} is" in result.stdout
        assert f"and the model chooses {right[place]} " in result.stdout
    found = json.loads(run("verify", text.receipt, "--model", text.model, "--json").stdout)
    assert (found["wrong_token"], found["chosen_token"], found["right_tokens"]) == (place, right[place], place)


HOSTILE = {
    "nothing": b"",
    "no JSON": b"{",
    "an endless number": b'{"format": ' + b"9" * 5000 + b"}",
    "a deep predicate": b'{"_type": "https://in-toto.io/Statement/v1", "predicate": ' + b'{"a":' * 100_000,
    "a key twice": b'{"format": 1, "format": 2}',
    "a statement of something else": b'{"_type": "https://in-toto.io/Statement/v1", "predicateType": "x"}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_in_one_sentence(run: Run, tmp_path: Path, name: str) -> None:
    path = tmp_path / "receipt.json"
    path.write_bytes(HOSTILE[name])
    for more in (("--offline",), ("--model", tmp_path), ("--offline", "--json")):
        said = refused(run("verify", path, *more), "is no receipt that could be checked", "get the receipt again")
        assert len(said) < 500


def test_offline_a_receipt_agrees_with_itself_and_nothing_is_repeated(run: Run, text: Text, trained: Trained) -> None:
    shown = run("verify", text.receipt, "--offline")
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[-1] == f"{text.receipt} agrees with itself; nothing was repeated."
    for more in (("--model", text.model), ("--job", trained.job), ("--show-text",)):
        refused(run("verify", text.receipt, "--offline", *more), "leave --offline away", code=2)
    root = ("--root", "0x" + bytes(32).hex())
    for more in (("--offline", "--job", trained.job), (), ("--job", trained.job, "--model", text.model)):
        refused(run("verify", text.receipt, *root, *more), "name that with --job, and no more", code=2)


def test_what_cannot_be_generated_is_refused_in_one_sentence(run: Run, text: Text, tmp_path: Path) -> None:
    words = ("generate", "--model", text.model, "--prompt", "a")
    refused(run(*words, "--temperature", "nan"), "temperature")
    refused(run(*words, "--top-k", "3"), "give a temperature above 0")
    refused(run(*words, "--sign"), "add --receipt", code=2)
    refused(run(*words, "--receipt", tmp_path / "no" / "text.json"), "there is no directory")
    refused(run(*words, "--receipt", tmp_path / "new.json", "--sign"), "no account is given")
    refused(run(*words, "--max-new-tokens", "100"), "max_position_embeddings of 64")
    refused(run(*words[:3], "--raw", "--prompt", "", "--max-new-tokens", "4"), "a prompt has no tokens")
    refused(run("generate", "--model", tmp_path / "no", "--prompt", "a"), "there is no folder")
    (tmp_path / "empty").mkdir()
    refused(run("generate", "--model", tmp_path / "empty", "--prompt", "a"), "config.json")
    refused(CliRunner().invoke(app, [*map(str, words[:3])], input=b"\xff"), "no text in UTF-8")
    assert not (tmp_path / "new.json").exists()


def test_a_text_does_not_control_a_terminal() -> None:
    from roundlog.generation import Choice
    from tiebreak.cli.generation import TextStream
    from tiebreak.generated_text import TextDecoder

    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    tokenizer, out = byte_tokenizer(), Terminal()
    stream = TextStream(TextDecoder(tokenizer, []), out, lambda: None)
    for token in tokenizer("a\x1b[2J\rb\n")["input_ids"]:
        stream.add(Choice(token, 0.0))
    stream.close()
    assert "\x1b" not in out.getvalue() and "\r" not in out.getvalue() and out.getvalue().endswith("b\n\n")


@pytest.mark.slow
def test_verify_shows_whose_words_a_text_is(run: Run, text: Text) -> None:
    words = ("verify", text.receipt, "--model", text.model, "--show-prompt", "--show-text")
    lines = run(*words).stdout.splitlines()
    assert lines[0].startswith("Right: ") and f"| <user>{PROMPT}<assistant>" in lines
    found = json.loads(run(*words, "--json").stdout)
    assert found["text"] + "\n" == text.stdout and found["prompt"] == f"<user>{PROMPT}<assistant>"
    edited(text.receipt, {"tokens": other_token(text, 3)})
    result = run(*words)
    assert result.exit_code == 3 and "the first 3 are the model's words, the others are not:" in result.stdout
    # Of the writer of a receipt: neither controls, nor a line that could be ours.
    hostile = "\x1b[2J\u202e\nRight: the model"
    edited(text.receipt, {"prompt_tokens": byte_tokenizer()(hostile)["input_ids"]})
    shown = run(*words).stdout
    assert "\n| <U+001B>[2J<U+202E>\n| Right: the model\n" in shown and "not seen stand by their numbers" in shown
    assert not any(line.startswith("Right") for line in shown.splitlines())
    receipt = read(text.receipt)
    text.receipt.write_text(receipt.signed(b"\1" * 20, b"\1" * 65).to_json())
    assert len(run(*words).stdout.splitlines()) == 1, "nothing is read, and nothing shown"
    assert "text" not in json.loads(run(*words, "--json").stdout)


@pytest.mark.slow
def test_a_prompt_of_other_tokens_than_those_of_its_text_is_told(run: Run, text: Text, tmp_path: Path) -> None:
    """Letters in place of merged tokens, and tokens that have no text: the text is right, and no answer to what it
    seems to be."""
    from roundlog.capture.huggingface import Sampling
    from roundlog.generation import load_model, make_receipt

    folder = Path(shutil.copytree(text.model, tmp_path / "tiny"))
    silent = byte_tokenizer().convert_tokens_to_ids(["õ", "ö"])
    tokenizer = byte_tokenizer(merges=[("s", "a"), ("sa", "y"), ("y", "e"), ("ye", "s")])
    tokenizer.save_pretrained(folder)
    loaded, path = load_model(folder), tmp_path / "made.json"
    generator = roundlog.generation.Generator(loaded.model, positions=40)
    right = tokenizer("say yes")["input_ids"]
    say, yes = ([tokenizer(letter)["input_ids"][0] for letter in word] for word in ("say", "yes"))
    others = {tuple([*say, *right[1:]]): "say yes", tuple([*say, right[1], *yes]): "say yes"}
    others |= {(silent[1], right[2]): f"<{silent[1]}>yes", (*right, silent[0]): f"say yes<{silent[0]}>"}
    for prompt, shown in ({tuple(right): "say yes"} | others).items():
        made = generator.generate(prompt, new_tokens=2, stop=loaded.stop)
        receipt = make_receipt(
            loaded, generator, prompt, made, sampling=Sampling(), seed=0, max_new_tokens=2, tiebreak_version="0"
        )
        path.write_text(receipt.to_json())
        words = ("verify", path, "--model", folder, "--show-prompt")
        lines, plain = run(*words).stdout.splitlines(), json.loads(run(*words, "--json").stdout)
        assert lines[0].startswith("Right: ") and f"| {shown}" in lines and plain["prompt"] == shown
        assert plain["prompt_as_tokenized"] is ("OTHER TOKENS" not in lines[-1]) is (prompt not in others)
        assert not any("not the likeliest" in line for line in lines) and plain["likeliest"]
    assert "than this text gives, from token 4 on. Who" in lines[-1]


@pytest.mark.slow
def test_a_choice_that_is_not_the_likeliest_is_told(run: Run, text: Text, tmp_path: Path) -> None:
    path = tmp_path / "made.json"
    words = ("generate", "--model", text.model, "--prompt", "say yes", "--max-new-tokens", 4, "--receipt", path)
    assert run(*words, "--repetition-penalty", 2.0**-100).exit_code == 0
    said = f"chosen by repetition_penalty {2.0**-100}"
    shown = run("verify", path, "--model", text.model).stdout
    assert shown.startswith("Right: ") and f"are not the likeliest ones, but {said}.\n" in shown
    shown = run("verify", path, "--offline").stdout
    assert said in shown and "cut at its maximum of 4 tokens" in shown
    for command in (("verify", path, "--offline"), ("verify", path, "--model", text.model)):
        plain = json.loads(run(*command, "--json").stdout)
        assert plain["sampling"]["repetition_penalty"] == 2.0**-100 and not plain["likeliest"]
    ended = edited(path, {"tokens": [5, 0], "finish_reason": "stop", "sampling.repetition_penalty": 1})
    shown = run("verify", ended, "--offline").stdout
    assert "the likeliest ones" in shown and "a token that ends texts" in shown and "cut" not in shown


@pytest.mark.slow
def test_verify_says_how_long_it_takes_and_has_an_end(run: Run, text: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    words, kind = ("verify", text.receipt, "--model", text.model), roundlog.generation.generator.Generator
    shown = run(*words, "--by-token").stderr
    assert re.match("Verifying takes about .* s, by the time that a part of its 29 .*, and is ended after 600 s", shown)
    # A chunk of the trial and one of the text, or of the prompt, and of the text its tokens one by one.
    monkeypatch.setattr(kind, "seconds_of_step", lambda self, token, width: 1000.0 if width > 1 else 100.0)
    assert re.search(r"takes about 2,0\d\d s, .*: give --max-seconds 3[01]\d\d to wait for that", refused(run(*words)))
    assert re.search(r"takes about 2,8\d\d s", refused(run(*words, "--by-token")))
    assert run(*words, "--max-seconds", "3001").exit_code == 0
    step = kind.step
    monkeypatch.setattr(kind, "seconds_of_step", lambda *arguments: 0.0)
    monkeypatch.setattr(kind, "step", lambda *arguments: (time.sleep(1.1), step(*arguments))[1])
    shown = run(*words, "--max-seconds", "1")
    assert shown.exit_code == 1 and "takes longer than 1 s: give a higher --max-seconds" in shown.stderr


# `tiebreak model`: GGUF as a folder of safetensors.


pytest.importorskip("transformers")
pytest.importorskip("gguf")


@pytest.mark.slow
def test_a_gguf_file_becomes_a_folder_with_the_same_weights_and_text(run: Run, tmp_path: Path) -> None:
    source, out = tmp_path / "small.gguf", tmp_path / "made" / "small"
    write_gguf(source, "Q8_0")
    made = json.loads(run("model", "export", source, "--out", out, "--dtype", "bf16", "--json").stdout)
    assert made["model"] == str(out) and list(out.parent.iterdir()) == [out]
    words = ("--prompt", "he", "--max-new-tokens", 5, "--receipt")
    texts = list[str]()
    with generators_kept():
        for model in (source, out):
            written = tmp_path / f"{model.name}.json"
            done = run("generate", "--model", model, *words, written)
            assert done.exit_code == 0 and "it/s" not in done.stderr, done.output
            texts.append(done.stdout)
            assert json.loads(written.read_text())["model"]["model_weight_hash"] == made["model_weight_hash"]
            assert run("verify", written, "--model", model).exit_code == 0
    assert texts[0] == texts[1]
    refused(run("verify", tmp_path / "small.json", "--model", source), "whose config_hash is not the receipt's")
    refused(run("model", "export", source, "--out", out), "is there already", "name another one")
    source.write_bytes(source.read_bytes()[:100])
    refused(run("model", "export", source, "--out", tmp_path / "new"), "cannot be read", "fetch it again")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["made"], "nothing is left"


# Text as a job.


transformers = pytest.importorskip("transformers")

PROMPTS, JOB_NEW = ("Hé?", "So"), 12


@dataclass(frozen=True)
class Generated:
    """A model, a job of it with two prompts, and a run of it. Read only."""

    model: Path
    job: Path
    run: Path
    made: str
    """Output of `job create`."""


def done(*words: object) -> str:
    """Standard output of a command that succeeds."""
    shown = CliRunner().invoke(app, [str(word) for word in words])
    assert shown.exit_code == 0, shown.output
    return shown.stdout


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    room = tmp_path_factory.mktemp("texts")
    model = write_model(room / "tiny")
    words = ["job", "create", "--model", model, "--out", room / "job", "--max-new-tokens", JOB_NEW, "--json"]
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


@pytest.mark.slow
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
    refused(run(*words), "give --root, as `status` prints it", code=2)
    refused(run(*words, "--root", "0x12"), "a root of 64 hex digits", code=2)
    refused(run(*words, "--root", roots[:32].hex()), "is not the state that was asked for: its state root is 0x")
    refused(
        run("job", "text", generated.job, generated.run, "--model", generated.model, "--root", roots[-32:].hex()),
        "leave --root away",
        code=2,
    )
    data = bytearray(whole.read_bytes())
    data[-1] ^= 1
    whole.write_bytes(data)
    refused(run(*words, "--root", roots[-32:].hex()), "is not the state that was asked for: its state root is 0x")
    whole.write_bytes(data[:100])
    refused(run(*words, "--root", roots[-32:].hex()), "is not the state that was asked for: it ")
