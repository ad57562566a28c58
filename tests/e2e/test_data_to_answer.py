"""From the data to the answer, and to the score: adapters are trained on a text, merged, served and evaluated, and what
comes of it leads back, receipt by receipt, to the run. Commands alone, as people give them."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import torch
from roundlog.commitments import MerkleTree
from safetensors.torch import load_file
from tiebreak.cli.app import app
from tiebreak.transactions.keys import devnet_account
from typer.testing import CliRunner, Result

from tests.client.cli.test_cli_statements import PACKAGES, write_keys
from tests.client.cli.text_world import write_model
from tests.client.evaluation_tasks import CHOICES, write_evaluation, write_tasks

pytest.importorskip("peft")
openai = pytest.importorskip("openai")
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "fine_tuning" / "lora_task.py"


def run(*words: object, code: int = 0) -> Result:
    """What a command says, which has to end with this code."""
    found = CliRunner().invoke(app, [str(word) for word in words])
    assert found.exit_code == code, found.output
    return found


@contextmanager
def served(model: Path, training: Path, receipts: Path, positions: int) -> Iterator[str]:
    """The address of a server of a model, in a process of its own."""
    words = [sys.executable, "-m", "tiebreak.cli.app", "serve", "--model", model, "--port", "0", "--rows", "1"]
    words += ["--receipts", receipts, "--training-receipt", training, "--positions", positions]
    process = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/v1", line)
        assert address is not None, line
        yield address[0]
    finally:
        process.terminate()
        process.wait(30)


class _Chain:
    """The parties' files."""

    def __init__(self, room: Path, base: Path) -> None:
        self.room, self.base = room, base
        self.job, self.trained, self.work = room / "job", room / "trained", room / "work"
        self.training, self.model, self.answer = room / "training.json", room / "mine", room / "answer.json"

    def train(self, text: Path, steps: int) -> None:
        """The trainer: a job of the script, its run, a receipt."""
        options = [
            ("--set", f"{name}={value}") for name, value in (("model", self.base), ("text", text), ("steps", steps))
        ]
        run("job", "create", f"{SCRIPT}:task", *sum(options, ()), "--out", self.job)
        run("train", self.job, "--run", self.trained)
        run("receipt", self.trained, "--job", self.job, "--out", self.training)

    def merge(self, state: Path, out: Path) -> str:
        """The hash of the weights that follow from a state."""
        words = ("--job", self.job, "--base", self.base, "--receipt", self.training, "--hub-folder", out, "--json")
        return str(json.loads(run("export", state, *words).stdout)["model_weight_hash"])

    def ask(self, question: str, tokens: int, positions: int) -> Any:
        """The answer to a question, by OpenAI's client; its receipt is kept."""
        with served(self.model, self.training, self.room / "receipts", positions) as address:
            client = openai.OpenAI(base_url=address, api_key="none", timeout=600)
            messages = [{"role": "user", "content": question}]
            answer = client.chat.completions.create(
                model=self.model.name, messages=messages, temperature=0, max_tokens=tokens
            )
            with urlopen(f"{address}/receipts/{answer.id}") as response:
                self.answer.write_bytes(response.read())
        return answer

    def verify(self, weights: str, said: str) -> None:
        """Whoever has the job, the base and both receipts, and believes nobody."""
        run("verify", self.training, "--job", self.job, "--dir", self.work)
        assert self.merge(self.work, self.room / "again") == weights
        receipt = json.loads(self.answer.read_text())
        assert receipt["model"]["model_weight_hash"] == weights
        digest = json.loads(run("verify", self.training, "--offline", "--json").stdout)["digest"]
        assert receipt["training_receipt"] == digest
        words = ("--model", self.room / "again", "--training-receipt", self.training, "--show-text", "--json")
        found = json.loads(run("verify", self.answer, *words).stdout)
        assert found["right"] and found["text"] == said


@pytest.mark.slow
def test_an_answer_leads_back_to_the_data(tmp_path: Path) -> None:
    chain = _Chain(tmp_path, write_model(tmp_path / "base", torch.bfloat16))
    (tmp_path / "text.txt").write_text("Tiebreak holds the trainer of a model to account. " * 12)
    chain.train(tmp_path / "text.txt", 4)
    weights = chain.merge(chain.trained, chain.model)
    before, after = (load_file(folder / "model.safetensors") for folder in (chain.base, chain.model))
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert changed == {f"model.layers.0.self_attn.{name}_proj.weight" for name in "qv"}, "those with adapters"
    answer = chain.ask("Who?", 6, 48)
    chain.verify(weights, answer.choices[0].message.content)

    # What does not belong together is found.
    plain = json.loads(chain.training.read_text())
    plain["date"] = "2001-01-01T00:00:00Z"
    (tmp_path / "dated.json").write_text(json.dumps(plain))
    named = ("verify", chain.answer, "--model", chain.model, "--training-receipt", tmp_path / "dated.json")
    shown = run(*named, code=3).stdout
    assert "does not name" in shown and "nothing was repeated" in shown
    assert json.loads(run(*named, "--json", code=3).stdout)["wrong_training_receipt"]


@pytest.mark.slow
def test_a_stranger_derives_the_score_from_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job with its data, the base, the folder for the Hub, statement and task; what is changed is named. Nothing in
    a name becomes Markdown or HTML."""
    pytest.importorskip("model_signing", reason=PACKAGES)
    pytest.importorskip("lm_eval", reason=PACKAGES)
    chain = _Chain(tmp_path, write_model(tmp_path / "base", torch.bfloat16))
    (tmp_path / "text.txt").write_text("Tiebreak holds the trainer of a model to account. " * 12)
    chain.train(tmp_path / "text.txt", 4)
    weights = chain.merge(chain.trained, chain.model)
    write_keys(tmp_path)
    write_tasks(tmp_path)
    task, evaluation = tmp_path / "words.yaml", tmp_path / "eval.json"
    task.write_text(CHOICES.replace("task: words", 'task: "<b>words|"'))
    monkeypatch.setenv("TIEBREAK_PRIVATE_KEY", bytes(devnet_account(3).key).hex())
    keys = ("--format", "in-toto", "--sign", "--signing-key", tmp_path / "key.pem")
    run("evaluate", "--model", chain.model, "--tasks", task, "--receipt", evaluation, *keys)
    hub, words = tmp_path / "hub", ["--job", chain.job, "--base", chain.base, "--receipt", chain.training]
    words += ["--evaluation", evaluation, "--signing-key", tmp_path / "key.pem", "--sign"]
    found = run("export", chain.trained, "--hub-folder", hub, *words, "--address", "bafyaddress", "--json").stdout
    assert json.loads(found)["model_weight_hash"] == weights
    assert {"README.md", "config.json", "evaluation.json", "model.safetensors"} < {*json.loads(found)["files"]}
    card, receipt = (hub / "README.md").read_text(), json.loads((hub / "training.json").read_text())
    for root in (receipt["spec"]["data_root"], receipt["spec"]["program_root"], receipt["checkpoint_root"], weights):
        assert f"`{root}`" in card
    assert "tiebreak audit bafyaddress --share 1" in card and "| ?b?words? | acc | 0." in card

    # The lines of the card, as a stranger runs them.
    signed = ("verify", hub / "model.sig", "--public-key", tmp_path / "key.pub", "--signer", devnet_account(3).address)
    run(*signed, "--job", chain.job, "--dir", chain.work)
    same_name = tmp_path / "again" / chain.model.name  # which is the title of the folder's README.md
    same_name.parent.mkdir()
    assert chain.merge(chain.work, same_name) == weights
    again = ("--model", same_name, "--tasks", task, "--public-key", tmp_path / "key.pub", *signed[-2:])
    derived = run("verify", evaluation, *again).output
    assert "the model gives all 12 answers" in derived and f"signed by {devnet_account(3).address}" in derived
    assert "all 12 answers" in run("verify", hub / "evaluation.json", *again[:4]).output
    files = [hub, "--signature", hub / "model.sig", "--public_key", tmp_path / "key.pub"]
    subprocess.run([sys.executable, "-m", "model_signing", "verify", "key", *files], check=True, timeout=300)
    alone = Path(shutil.copy(hub / "model.sig", tmp_path))
    assert "put it there" in run("verify", alone, *signed[2:], "--job", chain.job, "--dir", chain.work, code=1).output
    (hub / "config.json").write_text((hub / "config.json").read_text() + "\n")
    shown = run(*signed, "--job", chain.job, "--dir", chain.work, code=1)
    assert "a file was added, taken away or changed" in " ".join(shown.output.split())

    # Each link is broken in turn, and named.
    def broken(path: Path, old: bytes, new: bytes, *words: object, code: int) -> str:
        whole = path.read_bytes()
        assert old in whole and old != new
        path.write_bytes(whole.replace(old, new, 1))
        said = " ".join(run("verify", *words, code=code).output.split())
        path.write_bytes(whole)
        return said

    statement = json.loads(evaluation.read_bytes())
    payload = base64.b64decode(statement["payload"])

    def restated(old: bytes, new: bytes) -> str:
        bent = base64.b64encode(payload.replace(old, new, 1))
        return broken(evaluation, statement["payload"].encode(), bent, evaluation, *again, code=3)

    root = "0x" + "11" * 32
    lie = receipt | {"state_roots": [root], "final_state_root": root}
    lie["checkpoint_root"] = "0x" + MerkleTree([bytes.fromhex(root[2:])]).root.hex()
    repeated = (chain.training, "--job", chain.job, "--dir", tmp_path / "work again")
    data = max((path for path in chain.job.glob("data.*")), key=lambda path: path.stat().st_size)
    found = {
        "data": broken(data, data.read_bytes()[-64:], bytes(64), *repeated, code=1),
        "run": broken(chain.training, chain.training.read_bytes(), json.dumps(lie).encode(), *repeated, code=3),
        "model": broken(same_name / "config.json", b"{", b"{ ", evaluation, *again, code=1),
        "task": broken(task, b"Q: ", b"q: ", evaluation, *again, code=3),
        "data of the task": broken(tmp_path / "words.jsonl", b"number 3", b"number 9", evaluation, *again, code=3),
        "score": restated(b'"acc":0', b'"acc":1'),
        "subject": restated(b'"subject":', b'"subject": '),
        "key": broken(
            tmp_path / "key.pub",
            *map(Path.read_bytes, (tmp_path / "key.pub", tmp_path / "foreign.pub")),
            evaluation,
            *again,
            code=3,
        ),
    }
    said = {
        "data": "the dataset in",
        "run": "interval 1 of 1 (steps 0 to 3) comes to the state root",
        "model": "a file was added, taken away or changed",
        "task": "the configuration of task <b>words| has another SHA-256",
        "data of the task": "the data words.jsonl of task <b>words| have another SHA-256",
        "score": f"its signature is not that of {devnet_account(3).address}",
        "subject": "is not that of this account over its envelope",
        "key": "its envelope is signed by the keys",
    }
    assert {link for link in found if said[link] not in found[link]} == set(), found

    # What does not belong together is found, and nothing is left.
    words = ["export", chain.trained, "--hub-folder", tmp_path / "no", *words]
    other = write_evaluation(chain.base, tmp_path / "other.json")
    assert "is of another model" in run(*words, "--evaluation", other, code=1).output
    first = ["export", chain.job / "initial.safetensors", "--hub-folder", tmp_path / "no"]
    assert "is not the final state of" in run(*first, *words[4:], code=3).output
    assert not (tmp_path / "no").exists()
