"""Audits by workers: of a published run by a stranger, from one address to one file."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from roundlog import segment_audits
from roundlog.segment_audits.segment import CHECKPOINTS_FILE
from roundlog.training.job import Job
from roundlog.training.receipt import Receipt, parse_audit_record, read_receipt
from roundlog.training.run import Run as TrainingRun
from roundlog.training.run_files import checkpoint_path
from tiebreak.cli.app import app
from tiebreak.store import FolderStore
from typer.testing import CliRunner

from tests.client.cli.cli_world import Run, refused
from tests.client.http_stand_in import Request, giving_blocks, serving
from tests.e2e.world import small_job
from tests.engine.segment_audits.audit_workers import honest

INTERVALS = 6


@dataclass(frozen=True)
class Published:
    """A run that was published on another machine: the store's folder, and the addresses in it."""

    store: Path
    job: str
    log: str
    root: str
    room: Path
    """Where the `job` and its honest `run` lie."""

    @property
    def lists(self) -> Path:
        """Directory of the log, to make others of it."""
        return self.room / "run" / "log"

    def other_log(self, change: Callable[[dict[str, Any]], object]) -> str:
        """Address of a log whose list was changed."""
        with tempfile.TemporaryDirectory() as room:
            shutil.copytree(self.lists, room, dirs_exist_ok=True)
            listed = json.loads((self.lists / CHECKPOINTS_FILE).read_text())
            change(listed)
            Path(room, CHECKPOINTS_FILE).write_text(json.dumps(listed))
            return FolderStore(self.store).add_directory(Path(room))


def rewrite(directory: Path, job: Job, roots: list[bytes]) -> None:
    """Puts other roots on record, as a run writes them."""
    with TrainingRun(job, directory).locked_record() as record:
        record(roots)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    torch.set_num_threads(1)
    room = tmp_path_factory.mktemp("elsewhere")
    small_job(steps=2 * INTERVALS, interval=2).write(room / "job")
    store = room / "store"

    def words(*more: object) -> dict[str, Any]:
        return told(CliRunner().invoke(app, [*map(str, more), "--json"]))

    trained = words("train", room / "job", "--run", room / "run", "--publish-every", 1, "--store", store)
    words("receipt", room / "run", "--job", room / "job", "--out", room / "receipt.json")
    job = json.loads((room / "run" / "log" / CHECKPOINTS_FILE).read_text())["job"]
    return Published(store, job, trained["published_log"], trained["checkpoint_root"], room)


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another machine: an empty home, an empty directory for temporary files, and an empty present one, which it is."""
    for name in ("home", "temporary", "here"):
        (tmp_path / name).mkdir()
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(segment_audits, "process_workers", lambda threads: honest)
    return tmp_path / "here"


def left(machine: Path) -> list[str]:
    """Files on the machine."""
    return sorted(str(path.relative_to(machine.parent)) for path in machine.parent.rglob("*") if not path.is_dir())


def told(shown: Any, code: int = 0) -> dict[str, Any]:
    assert shown.exit_code == code, shown.output
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def test_an_audit_of_an_address_leaves_its_result_alone(run: Run, published: Published, machine: Path) -> None:
    with serving(giving_blocks(FolderStore(published.store))) as url:
        found = told(run("audit", published.log, "--share", 1, "--store", f"gateway+{url}", "--json"))
    assert found["agrees"] is True and found["checkpoint_root"] == published.root
    assert (found["right_intervals"], found["job"], found["claim_address"]) == (INTERVALS, published.job, published.log)
    assert left(machine) == [f"here/{found['result']}"] and found["result"].startswith("audit-")
    assert found["fetched_data_bytes"] > 0, "its data are read where they lie"
    result = read_receipt(machine / found["result"])
    assert result.audit is not None and result.audit.right == ((0, INTERVALS),) and result.audit.wrong is None
    assert "0x" + result.checkpoint_root.hex() == published.root


def test_a_share_says_in_words_what_it_showed_and_how_surely(run: Run, published: Published, machine: Path) -> None:
    shown = run("audit", published.log, "--share", 0.3, "--store", published.store, "--result", "mine.json")
    text = " ".join(shown.stdout.split())
    assert shown.exit_code == 0, shown.output
    assert "nothing wrong in 2 of 6 intervals, drawn in secret" in text and "33.3 % of the time 1 wrong" in text
    assert "a wrong one that was not drawn passes" in text and "Result: mine.json" in text
    audit = read_receipt(machine / "mine.json").audit
    assert audit is not None and (audit.parts, audit.drawn) == (INTERVALS, 2)
    assert sum(stop - first for first, stop in audit.right) == 2


def test_a_result_with_other_roots_than_its_log_is_refused(
    run: Run, published: Published, machine: Path, tmp_path: Path
) -> None:
    """Regression: the honest log was audited in place of the result's roots, and found right."""
    honestly = told(run("audit", published.log, "--share", 0.3, "--store", published.store, "--json"))["result"]
    receipt = read_receipt(machine / honestly)
    forged = replace(receipt, state_roots=(*receipt.state_roots[:-1], b"\x11" * 32))
    forged.write(tmp_path / "mallory.json")
    words, root = ("audit", tmp_path / "mallory.json", "--share", 1, "--store", published.store), forged.checkpoint_root
    for more in ((), ("--claim", "0x" + root.hex())):
        text = refused(run(*words, *more), f"do not make the claimed checkpoint root 0x{root.hex()}")
        assert published.log in text
    # Nothing beside a result takes the place of what it says.
    refused(run(*words, "--claim", published.root), root.hex(), published.root, "not the one", code=2)
    refused(run(*words, "--claim", published.log), "says itself what is claimed", "--claim away", code=2)
    again = told(run("audit", machine / honestly, *words[2:], "--claim", published.root, "--json"))
    assert again["agrees"] is True and again["checkpoint_root"] == published.root
    assert len(list(machine.iterdir())) == 2, "no result is written of what is refused"


def test_the_result_names_an_interval_that_a_list_lies_about(run: Run, published: Published, machine: Path) -> None:
    def lies(listed: dict[str, Any]) -> None:
        listed["state_roots"][3] = "11" * 32

    lying = published.other_log(lies)
    found = told(run("audit", lying, "--share", 1, "--store", published.store, "--json"), 3)
    assert found["agrees"] is False and found["wrong_interval"] == 3
    result = read_receipt(machine / found["result"])
    assert result.audit is not None and result.audit.wrong is not None and result.audit.wrong.interval == 3
    assert result.state_roots[3] == bytes.fromhex("11" * 32), "the roots are the claimed ones"
    assert "WRONG" in run("audit", lying, "--share", 1, "--store", published.store).stdout


def test_addresses_without_a_claim_are_refused(run: Run, published: Published, machine: Path) -> None:
    store = FolderStore(published.store)
    unnamed = published.other_log(lambda listed: listed.update(job=None))
    elsewhere = published.other_log(lambda listed: listed.update(job=unnamed))
    foreign = published.other_log(lambda listed: listed.update(run_id="11" * 32))
    longer = published.other_log(lambda listed: listed["state_roots"].append("11" * 32))
    begun = published.other_log(lambda listed: listed.update(state_roots=[], states={}))
    for address, part in (
        (published.job, "lists no checkpoints"),
        (store.add_bytes(b"{" * 1000), "lists no checkpoints"),
        (unnamed, "does not say where its job lies"),
        (elsewhere, "is no job (the directory is no job, since it has no"),
        (foreign, "the list of checkpoints is of another run"),
        (longer, "has 7 roots of 6 intervals"),
        (begun, "the log of a run that had not ended"),
        ("bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy", "bafkreigh2akiscaildcqabsyg3dfr6chu3f"),
    ):
        text = refused(run("audit", address, "--share", 1, "--store", published.store), part)
        assert text.isprintable() and "temporary" not in text
    assert [name for name in left(machine) if name.startswith(("here", "temporary", "home"))] == []


def test_without_a_store_the_missing_option_is_named(run: Run, published: Published, machine: Path) -> None:
    refused(run("audit", published.log, "--share", 1), "no content store", "--store", "gateway+https://", code=2)
    (machine / "taken.json").touch()
    words = ("audit", published.log, "--store", published.store, "--result")
    refused(run(*words, "taken.json"), "never replaced")
    assert left(machine) == ["here/taken.json"]


@pytest.mark.slow
def test_a_signal_ends_the_audit_and_leaves_nothing(published: Published, machine: Path) -> None:
    give = giving_blocks(FolderStore(published.store))
    asked: list[str] = []

    def answer(request: Request) -> None:
        asked.append(request.path)
        if len(asked) > 8:
            time.sleep(60)  # in the midst of the job
        give(request)

    with serving(answer) as url:
        words = ["audit", published.log, "--share", "1", "--store", f"gateway+{url}"]
        process = subprocess.Popen([sys.executable, "-P", "-m", "tiebreak", *words], stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while len(asked) <= 8 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert any(name.startswith("temporary/tiebreak-audit-") for name in left(machine))
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "stopped before the end" in said
    assert left(machine) == []


def test_the_number_of_a_job_brings_its_claim(run: Run, published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    receipt = read_receipt(published.room / "receipt.json")

    def posted(**changed: Any) -> None:
        claim = {"log_cid": published.log, "checkpoint_root": receipt.checkpoint_root} | changed
        spec = SimpleNamespace(training=receipt.spec)
        view = SimpleNamespace(job_cid=published.job, claim=SimpleNamespace(**claim), spec=spec)
        monkeypatch.setattr("tiebreak.cli.summary_text.find_job", lambda game, number: view)

    monkeypatch.setattr("tiebreak.cli.network.ContractOptions.open_game", lambda self: None)
    words = ("audit", 7, "--share", 1, "--store", published.store)
    posted()
    assert told(run(*words, "--json"))["agrees"] is True
    posted(checkpoint_root=b"\x11" * 32)
    refused(run(*words), "do not make the claimed checkpoint root")
    posted(log_cid="")
    refused(run(*words), "nothing is claimed of job 7")
    posted(log_cid="/etc/passwd")
    refused(run(*words), "names no content addresses")


def test_a_result_that_contradicts_itself_is_refused(run: Run, published: Published, machine: Path) -> None:
    file = told(run("audit", published.log, "--share", 0.3, "--store", published.store, "--json"))["result"]
    good = json.loads((machine / file).read_text())
    assert isinstance(read_receipt(machine / file), Receipt)
    assert parse_audit_record(good["audit"], INTERVALS).plain() == good["audit"]
    wrong = {"interval": 0, "root": "0x" + "11" * 32, "stopped": None}
    for change in (
        {"parts": INTERVALS + 1},
        {"right": [[0, 2], [1, 3]]},
        {"right": [[0, 1]], "wrong": wrong},
        {"wrong": wrong | {"stopped": "\x1b"}},
        {"job": "a b"},
    ):
        (machine / "bad.json").write_text(json.dumps(good | {"audit": good["audit"] | change}))
        refused(run("audit", "bad.json", "--store", published.store), "is no result of an audit")
    for bad in ({**good, "format": "tiebreak receipt"}, {key: good[key] for key in good if key != "audit"}):
        (machine / "bad.json").write_text(json.dumps(bad))
        refused(run("verify", "bad.json", "--job", "x", "--dir", "y"), "is no receipt that could be checked")


def test_an_audit_in_a_directory_carries_on(run: Run, published: Published, machine: Path) -> None:
    words = ("audit", published.log, "--workers", 2, "--store", published.store, "--run", "audited", "--json")
    found, again = told(run(*words)), told(run(*words))
    assert found["agrees"] is again["agrees"] is True and again["busy_seconds"] == 0
    assert (machine / "audited" / "job" / "elsewhere.json").is_file()
    (machine / "other").mkdir()
    shutil.copytree(machine / "audited" / "job", machine / "other" / "job")
    record = json.loads((machine / "other" / "job" / "elsewhere.json").read_text()) | {"job": published.log}
    (machine / "other" / "job" / "elsewhere.json").write_text(json.dumps(record))
    refused(run(*words[:-2], "other"), "is the directory of another job's audit")


def test_a_checkpoint_that_was_mended_is_published_again(run: Run, published: Published, tmp_path: Path) -> None:
    """A run was killed in its last interval, and a bit of an earlier checkpoint flipped."""
    job, store = Job.read(published.room / "job"), ("--store", tmp_path / "store", "--json")
    shutil.copytree(published.room / "run", tmp_path / "run")
    rewrite(tmp_path / "run", job, TrainingRun(job, published.room / "run").recorded_roots()[:-1])
    path = checkpoint_path(tmp_path / "run", 2)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    words = ("train", published.room / "job", "--run", tmp_path / "run", "--publish-every", 1)
    address = told(run(*words, *store))["published_log"]
    assert path.read_bytes() == checkpoint_path(published.room / "run", 2).read_bytes(), "mended"
    found = told(run("audit", address, "--workers", 2, *store))
    assert found["agrees"] is True and found["unusable_states"] == []


def test_workers_and_shares_of_a_job_in_a_directory_are_refused(run: Run, published: Published) -> None:
    words = ("audit", published.room / "job", "--run", "audit", "--claim", published.room / "run")
    refused(run(*words, "--share", 0.1), "--share", "--workers", code=2)
    refused(run(*words, "--repeat-share", 0.1), "--repeat-share", "--workers", code=2)
    refused(run(*words, "--workers", 2), "the address of the log in place of JOB", "torchrun", code=2)
    assert not Path("audit").exists()


def test_what_is_not_kept_cannot_be_published(run: Run, published: Published, tmp_path: Path) -> None:
    words = ("train", published.room / "job", "--run", tmp_path / "run", "--publish-every", 3, "--keep-every", 2)
    refused(run(*words), "--publish-every 3", "--keep-every 2", "multiple", code=2)
