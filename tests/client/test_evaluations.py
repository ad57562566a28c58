"""`tiebreak evaluate` by the real lm-eval, and the check of its receipts: what an author could change is told."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from tiebreak.cli.app import app
from tiebreak.devnet.launcher import start_devnet
from tiebreak.evaluation.evaluation_receipt import drawn_requests, largest_unnoticed, parse_evaluation_receipt
from tiebreak.rpc.node import connect
from tiebreak.transactions.keys import devnet_account
from typer.testing import CliRunner

from tests.client.evaluation_tasks import CHOICES, ENDS, TEXTS, write_tasks
from tests.client.server.small_model import save_small_model


def run(*words: object) -> tuple[int, str]:
    found = CliRunner().invoke(app, [str(word) for word in words])
    return found.exit_code, found.output


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("lm_eval")
    place = tmp_path_factory.mktemp("evaluations")
    save_small_model(place / "model")
    write_tasks(place)
    code, said = run("evaluate", "--model", place / "model", *tasks(place), "--receipt", place / "eval.json")
    assert code == 0, said
    return place


def tasks(place: Path) -> list[object]:
    return [word for name in ("words", "pages", "ends") for word in ("--tasks", place / f"{name}.yaml")]


def verified(room: Path, file: Path, *more: object) -> tuple[int, str]:
    return run("verify", file, "--model", room / "model", *tasks(room), *more)


pytestmark = pytest.mark.slow


def test_the_scores_are_those_of_lm_eval_and_are_derived_again(room: Path) -> None:
    receipt = parse_evaluation_receipt((room / "eval.json").read_bytes())
    assert [len(task.scores) for task in receipt.tasks] == [2, 2, 1] and len(receipt.answers) == 12 + 6 + 6
    code, said = verified(room, room / "eval.json")
    assert code == 0 and "the model gives all 24 answers" in said, said
    code, said = verified(room, room / "eval.json", "--share", "0.25", "--seed", "7", "--json")
    found = json.loads(said[said.index("{\n") :])
    assert code == 0 and found["repeated"] == 6 and found["most_wrong_at_95_percent"] == largest_unnoticed(24, 6)
    code, said = run("verify", room / "eval.json", "--offline")
    assert code == 0 and "nothing was repeated" in said


def test_another_way_through_transformers_comes_to_the_same_choices(room: Path) -> None:
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from tiebreak.evaluation.task_files import read_task
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(room / "model", dtype="bfloat16")
    harness = HFLM(pretrained=model, tokenizer=AutoTokenizer.from_pretrained(room / "model"), batch_size=1)
    (room / "copy").mkdir()
    task = read_task(room / "words.yaml", room / "copy")
    manager = TaskManager(include_defaults=False)
    loaded = list(manager.load([task.config])["tasks"].values())
    how = {"task_manager": manager, "bootstrap_iters": 0, "log_samples": False, "verbosity": "ERROR"}
    found = lm_eval.simple_evaluate(model=harness, tasks=loaded, **how)
    receipt = parse_evaluation_receipt((room / "eval.json").read_bytes())
    assert float(f"{found['results']['words']['acc,none']:.12g}") == receipt.tasks[0].scores["acc"]


def test_a_block_draws_the_share_of_a_posted_receipt(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, author = tmp_path / "eval.json", devnet_account(4)
    monkeypatch.setenv("TIEBREAK_PRIVATE_KEY", bytes(author.key).hex())
    words = ("evaluate", "--model", room / "model", "--tasks", room / "words.yaml", "--receipt", file, "--sign")
    assert run(*words)[0] == 0
    by_block = ("verify", file, *words[1:5], "--share", "0.5", "--beacon", "chain", "--posted")
    with start_devnet(kind="embedded") as devnet:
        monkeypatch.setenv("TIEBREAK_CHAIN", devnet.url)
        said = run("post", file, "--json")[1]
        posted, node = json.loads(said[said.index("{") :])["transaction"], connect(devnet.url)
        assert "wait for 32 more blocks" in " ".join(run(*by_block, posted)[1].split())
        for _ in range(32):
            node.advance_time(1)
        code, said = run(*by_block, posted, "--json")
        found, last = json.loads(said[said.index("{\n") :]), node.head()
        assert (code, found["seed"], found["repeated"]) == (0, "0x" + last.hash.hex(), 6)
        assert (found["beacon"]["block"], found["beacon"]["earlier_transactions"]) == (last.number, 0)
        assert found["most_wrong_at_95_percent"] == largest_unnoticed(12, 6, 40)
        code, said = run(*by_block, posted)
        assert code == 0 and f"the hash of block {last.number}" in said and author.address in said
        other = ("verify", room / "eval.json", "--model", room / "model", *tasks(room), *by_block[6:], posted)
        assert run(*other)[0] == 1 and "nobody has signed" in run(*other)[1]
        assert run(*by_block, posted, "--seed", "1")[0] == run(*by_block[:-3], "--posted", posted)[0] == 2


def changed(room: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    plain = json.loads((room / "eval.json").read_bytes())
    change(plain)
    (room / "changed.json").write_bytes(rfc8785.dumps(plain))
    return room / "changed.json"


def set_score(plain: dict[str, Any]) -> None:
    plain["tasks"][1]["scores"]["bits_per_byte"] = round(plain["tasks"][1]["scores"]["bits_per_byte"], 3)


def halve(plain: dict[str, Any]) -> None:
    del plain["answers"][12:]
    plain["request_count"] = 12


def bend(plain: dict[str, Any]) -> None:
    plain["answers"][3]["logprob"] += 2.0**-20


LIES: dict[str, tuple[Callable[[dict[str, Any]], object], int, str]] = {
    "a score": (set_score, 3, "bits_per_byte of task pages is"),
    "half of the requests": (halve, 3, "its tasks have another number of requests"),
    "an answer": (bend, 3, "request 4 has the answer"),
    "the root": (lambda plain: plain.update(requests_root="0x" + "11" * 32), 3, "have another root"),
    "a token": (lambda plain: plain["answers"][-1]["tokens"].append(7), 3, "request 24 has the answer"),
    "another model": (lambda plain: plain["model"].update(config_hash="0x" + "11" * 32), 1, "is of another model"),
    "another harness": (lambda plain: plain["versions"].update(lm_eval="0.1"), 1, "pip install lm-eval==0.1"),
    "an infinity": (lambda plain: plain["tasks"][0]["scores"].update(acc="inf"), 1, "that is no number"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_changed_receipt_is_told(room: Path, name: str) -> None:
    change, code, said = LIES[name]
    found = verified(room, changed(room, change))
    assert found[0] == code and said in " ".join(found[1].split()), found


def test_changed_data_or_tasks_are_named(room: Path, tmp_path: Path) -> None:
    for name in ("words.jsonl", "words.yaml", "pages.yaml", "ends.yaml"):
        (tmp_path / name).write_bytes((room / name).read_bytes())
    text = (tmp_path / "words.jsonl").read_text()
    (tmp_path / "words.jsonl").write_text(text.replace("number 3", "number 9"))
    code, said = run("verify", room / "eval.json", "--model", room / "model", *tasks(tmp_path))
    assert code == 3 and "the data words.jsonl of task words have another SHA-256" in " ".join(said.split())
    (tmp_path / "words.jsonl").write_text(text)
    stops = ENDS.replace('until: ["a", "e"]', 'until: ["a", "e", "s"]')
    for name, other in (("pages", TEXTS.replace("{{question}}", "{{question}}.")), ("ends", stops)):
        whole = (tmp_path / f"{name}.yaml").read_text()
        (tmp_path / f"{name}.yaml").write_text(other)
        code, said = run("verify", room / "eval.json", "--model", room / "model", *tasks(tmp_path))
        assert code == 3 and f"the configuration of task {name} has another SHA-256" in " ".join(said.split())
        (tmp_path / f"{name}.yaml").write_text(whole)


def test_a_question_that_shows_as_another_is_told(room: Path, tmp_path: Path) -> None:
    shutil.copy(room / "words.yaml", tmp_path)
    (tmp_path / "words.jsonl").write_text((room / "words.jsonl").read_text().replace("number 3", "num\u200bber 3"))
    words = ("--model", room / "model", "--tasks", tmp_path / "words.yaml")
    assert run("evaluate", *words, "--receipt", tmp_path / "eval.json", "--limit", "4")[0] == 0
    code, said = run("verify", tmp_path / "eval.json", *words)
    assert code == 0 and "Request 7 has characters that are not seen" in said and "num<U+200B>ber 3" in said
    assert "Of each task the first 4 documents alone were evaluated" in said


HOSTILE = {
    "code": (CHOICES.replace('"{{answer}}"', "!function evil.answer"), "without tags as !function"),
    "a class": (CHOICES + "class: evil", "takes code"),
    "data of a hub": (CHOICES.replace("dataset_path: json", "dataset_path: someone/data"), "data from elsewhere"),
    "a fetched metric": (CHOICES.replace("metric: acc,", "metric: acc, hf_evaluate: true,"), "fetched as code"),
    "no data": (CHOICES.replace("words.jsonl", "none.jsonl"), "cannot be read"),
    "a way out of its template": (
        CHOICES.replace("{{question}}", "{{ ''.__class__.__mro__[1].__subclasses__() }}"),
        "does not take a task (SecurityError",
    ),
    "no task": ("- 1", "names no task"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_strangers_task_runs_no_code(room: Path, name: str) -> None:
    text, said = HOSTILE[name]
    (room / "hostile.yaml").write_text(text)
    words = ("--model", room / "model", "--tasks", room / "hostile.yaml", "--receipt", room / "hostile.json")
    code, found = run("evaluate", *words)
    assert code == 1 and said in " ".join(found.split()), found
    assert not (room / "hostile.json").exists()


def test_the_bound_is_that_of_drawing_without_replacement() -> None:
    for total, drawn in ((24, 6), (300, 15), (40, 40), (1000, 1), (7, 3)):
        unmet, wrong = Fraction(1), 0
        while unmet * Fraction(total - drawn - wrong, total - wrong) >= Fraction(1, 20):
            unmet *= Fraction(total - drawn - wrong, total - wrong)
            wrong += 1
        assert largest_unnoticed(total, drawn) == wrong


def test_a_share_is_drawn_as_the_page_on_receipts_says() -> None:
    order = sorted(range(40), key=lambda i: hashlib.sha256(b"7 0x" + b"0" * 64 + b" %d" % i).hexdigest())
    assert all(drawn_requests("7", bytes(32), 40, count) == {*order[:count]} for count in (1, 10, 40))
