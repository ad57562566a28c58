"""Receipts: the file, what a stranger can write into one, and the repetition of a run that it is checked by."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from roundlog.commitments import MerkleTree
from roundlog.spec import POLICY_THRESHOLD
from roundlog.storage import load_tensors, save_tensors
from roundlog.training import receipt as receipts
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.receipt import Receipt, ReceiptError, read_receipt
from roundlog.training.repetition import draw_intervals, repeat, repeat_all
from roundlog.training.trainer import Trainer, TrainingResult

from tests.engine.tasks import linear_task

Trained = tuple[Path, Job, TrainingResult]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    directory = tmp_path_factory.mktemp("trained")
    job = Job.from_task(lambda: linear_task(steps=12, interval=2), compare=False)
    return directory, job, Trainer(job, directory / "run").run()


@pytest.fixture
def file(trained: Trained, tmp_path: Path) -> Path:
    _, job, result = trained
    path = tmp_path / "receipt.json"
    Receipt.of(job.spec, result.state_roots, "0.1.0").write(path)
    return path


def test_a_receipt_is_read_as_it_was_written(trained: Trained, file: Path) -> None:
    _, job, result = trained
    found = read_receipt(file)
    assert found.spec == job.spec and list(found.state_roots) == result.state_roots
    assert found.checkpoint_root == result.checkpoint_root and found.final_state_root == result.state_roots[-1]
    assert found.signer is None and found.signature is None
    plain = json.loads(file.read_text())
    assert plain["checkpoint_root"] == "0x" + result.checkpoint_root.hex() and plain["version"] == 1
    assert json.loads(found.signed_text()) == plain
    signed = found.by(bytes(20))
    assert signed.signed(bytes(20), bytes(65)).signed_text() == signed.signed_text(), "all but the signature is signed"
    assert signed.signed_text() != found.signed_text(), "the signer, too"
    assert " " not in re.sub('"[^"]*"', "", found.signed_text())
    signed = found.signed(bytes(20), b"\x07" * 65)
    signed.write(file)
    assert read_receipt(file) == signed


def test_an_unfinished_run_and_a_run_by_threshold_have_no_receipt(trained: Trained) -> None:
    _, job, result = trained
    with pytest.raises(ReceiptError, match="5 of 6 checkpoints"):
        Receipt.of(job.spec, result.state_roots[:5], "0.1.0")
    with pytest.raises(ReceiptError, match="threshold"):
        Receipt.of(replace(job.spec, rounding_policy=POLICY_THRESHOLD), result.state_roots, "0.1.0")


def put(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(plain: dict[str, Any]) -> None:
        place: Any = plain
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return change


HOSTILE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another format": put("format", value="receipt"),
    "no version": put("version", value="1"),
    "a missing key": lambda plain: plain.pop("date"),
    "an unknown key": put("more", value=1),
    "a root too short": put("state_roots", 2, value="0x12"),
    "one root changed": put("state_roots", 2, value="0x" + "1" * 64),
    "a root too many": lambda plain: plain["state_roots"].append("0x" + "1" * 64),
    "another checkpoint root": put("checkpoint_root", value="0x" + "1" * 64),
    "a spec of no steps": put("spec", "steps", value=0),
    "a spec by threshold": put("spec", "rounding_policy", value=1),
    "a spec with more": put("spec", "more", value=1),
    "another spec": put("spec", "seed", value=12345),
    "a huge number": put("spec", "seed", value=10**30),
    "NaN": put("machine", "threads", value=float("nan")),
    "no threads": put("machine", "threads", value=0),
    "versions with more": put("versions", "numpy", value="2"),
    "a long text": put("machine", "processor", value="x" * 201),
    "a text that controls the terminal": put("machine", "processor", value="\x1b[31m"),
    "a text with a line's end": put("machine", "processor", value="a\n"),
    "a machine that is a list": put("machine", value=[]),
    "a date that is none": put("date", value="2026-13-01T00:00:00Z"),
    "a date without a zone": put("date", value="2026-01-01T00:00:00"),
    "a signer alone": put("signer", value="0x" + "1" * 40),
    "a signature too short": lambda plain: plain.update(signer="0x" + "1" * 40, signature="0x12"),
    "a version that is true": put("version", value=True),
    "roots as an object": put("state_roots", value={}),
    "a spec that is a list": put("spec", value=[]),
    "versions that are a text": put("versions", value="1"),
}
TEXTS = {
    "nothing": b"",
    "no JSON": b"hello",
    "no text": b"\xff\xfe",
    "deep": b"[" * 200_000,
    "a number of a million digits": b'{"version": ' + b"1" * 10**6 + b"}",
}


def says_one_sentence(path: Path) -> str:
    with pytest.raises(ReceiptError) as refused:
        read_receipt(path)
    text = str(refused.value)
    assert str(path) in text and len(text) < 700 and "\n" not in text and "\x1b" not in text
    return text


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_receipt_is_refused_with_the_remedy(name: str, file: Path) -> None:
    plain = json.loads(file.read_text())
    HOSTILE[name](plain)
    file.write_text(json.dumps(plain))
    assert "get the receipt again" in says_one_sentence(file)


@pytest.mark.parametrize("name", TEXTS)
def test_bytes_that_are_no_receipt_are_refused_with_the_remedy(name: str, file: Path) -> None:
    file.write_bytes(TEXTS[name])
    assert "get the receipt again" in says_one_sentence(file)


def test_a_key_twice_is_refused(file: Path) -> None:
    text = file.read_text()
    for twice in (text.replace('"date"', '"version": 1, "date"', 1), text.replace('"seed"', '"seed": 1, "seed"', 1)):
        file.write_text(twice)
        assert "a key twice" in says_one_sentence(file)


def test_a_newer_version_is_told_from_a_damaged_file(file: Path) -> None:
    plain = json.loads(file.read_text())
    file.write_text(json.dumps(plain | {"version": 2, "what comes": "next"}))
    assert "install the version" in says_one_sentence(file)


def test_a_file_that_is_none_or_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "check the path" in says_one_sentence(tmp_path / "no")
    assert "check the path" in says_one_sentence(tmp_path)
    monkeypatch.setattr(receipts, "MAX_RECEIPT_BYTES", 1000)
    (tmp_path / "large").write_bytes(b" " * 1001)
    assert "more than 1000 bytes" in says_one_sentence(tmp_path / "large")


@pytest.mark.slow_but("0", "3")
@pytest.mark.parametrize("wrong", range(6))
def test_the_first_wrong_interval_is_found(wrong: int, trained: Trained, tmp_path: Path) -> None:
    directory, job, result = trained
    roots = list(result.state_roots)
    roots[wrong] = bytes(32)
    if wrong < 4:
        roots[wrong + 2] = bytes(32)
    for found in (
        repeat_all(job, roots, tmp_path / "all"),
        repeat(job, roots, directory / "run", tmp_path / "work", range(6)),
    ):
        assert found.first_wrong == wrong and found.found == result.state_roots[wrong]
        assert found.repeated == list(range(wrong))


def counted(job: Job, roots: list[bytes], kept: Path, work: Path, intervals: list[int]) -> tuple[Any, list[int]]:
    steps: list[int] = []
    options = RunOptions(on_step=lambda event: steps.append(event.step))
    return repeat(job, roots, kept, work, intervals, options), steps


def test_a_share_runs_the_drawn_intervals_and_no_others(trained: Trained, tmp_path: Path) -> None:
    directory, job, result = trained
    told: list[int] = []
    found, steps = counted(job, result.state_roots, directory / "run", tmp_path, [4, 1])
    assert found.repeated == [1, 4] and steps == [2, 3, 8, 9] and not found.wrong_states
    repeat(job, result.state_roots, directory / "run", tmp_path, [4, 1], on_interval=told.append)
    assert told == [1, 2]
    roots = [*result.state_roots[:3], bytes(32), *result.state_roots[4:]]
    found, steps = counted(job, roots, directory / "run", tmp_path, [1, 3])
    assert found.first_wrong == 3 and found.repeated == [1]


@pytest.mark.parametrize("damage", ["flip", "cut", "another state", "gone", "link to nowhere"])
def test_a_kept_state_that_is_not_the_claimed_one_is_not_used(damage: str, trained: Trained, tmp_path: Path) -> None:
    """A lie in it wastes the work of the intervals since the state before."""
    directory, job, result = trained
    kept = tmp_path / "kept"
    shutil.copytree(directory / "run", kept)
    path = kept / "checkpoints" / "00000006.safetensors"
    if damage == "flip":
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "another state":
        shutil.copy(kept / "checkpoints" / "00000008.safetensors", path)
    else:
        path.unlink()
        if damage == "link to nowhere":
            path.symlink_to(tmp_path / "nowhere")
    found, steps = counted(job, result.state_roots, kept, tmp_path / "work", [3])
    assert found.repeated == [2, 3] and steps == [4, 5, 6, 7] and found.first_wrong is None
    if damage == "gone":
        assert found.wrong_states == []
    else:
        (said,) = found.wrong_states
        assert str(path) in said and "is not the claimed state" in said


def test_a_state_that_was_computed_is_still_held_against_the_kept_one(trained: Trained, tmp_path: Path) -> None:
    directory, job, result = trained
    kept = tmp_path / "kept"
    shutil.copytree(directory / "run", kept)
    names = ["00000006.safetensors", "00000012.safetensors"]
    for name in names:
        states = load_tensors(kept / "checkpoints" / name, job.program.states)
        next(iter(states.values())).view(-1)[0] += 1
        save_tensors(kept / "checkpoints" / name, states)
    found = repeat(job, result.state_roots, kept, tmp_path / "work", range(6))
    assert found.repeated == list(range(6)) and found.first_wrong is None
    assert [name in said for name, said in zip(names, found.wrong_states, strict=True)] == [True, True]


def test_states_that_fit_wrong_roots_are_no_proof(trained: Trained, tmp_path: Path) -> None:
    """A run that left the right way in interval 2 and went on honestly has such states: only interval 2 shows it."""
    directory, job, result = trained
    states = load_tensors(directory / "run" / "checkpoints" / "00000006.safetensors", job.program.states)
    next(iter(states.values())).view(-1)[0] += 1
    from roundlog.commitments import state_root
    from roundlog.training.run import Run

    kept = tmp_path / "kept"
    shutil.copytree(directory / "run", kept)
    save_tensors(kept / "checkpoints" / "00000006.safetensors", states)
    roots = [*result.state_roots[:2], state_root(states.values())]
    for step, after in Run(job, tmp_path / "other").replay(6, list(states.values())):
        if step % 2:
            roots.append(state_root(after))
            named = dict(zip(job.program.state_names, after, strict=True))
            save_tensors(kept / "checkpoints" / f"{step + 1:08d}.safetensors", named)
    assert MerkleTree(roots).root != result.checkpoint_root
    for interval in (0, 1, 3, 4, 5):
        found = repeat(job, roots, kept, tmp_path / "work", [interval])
        assert found.first_wrong is None and not found.wrong_states
    assert repeat(job, roots, kept, tmp_path / "work", [2]).first_wrong == 2
    assert repeat(job, roots, kept, tmp_path / "work", range(6)).first_wrong == 2


def test_a_draw_is_a_share_of_the_intervals_and_differs() -> None:
    assert (
        draw_intervals(30, 1.0) == list(range(30))
        and len(draw_intervals(30, 0.1)) == 3
        and len(draw_intervals(30, 0.0)) == 1
    )
    assert draw_intervals(1, 0.5) == [0] and len(draw_intervals(30, 0.11)) == 4
    many = [tuple(draw_intervals(30, 0.1)) for _ in range(50)]
    assert len(set(many)) > 1 and all(sorted(set(one)) == list(one) for one in many)
    assert {interval for one in [draw_intervals(5, 0.2) for _ in range(500)] for interval in one} == set(range(5))
