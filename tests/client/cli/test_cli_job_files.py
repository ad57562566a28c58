"""Jobs that are published and fetched, with their data or without; and audits that fetch the blocks they use."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog import segment_audits
from roundlog.training.job import JOB_FILES, Job
from tiebreak.segment_audits import lies_elsewhere
from tiebreak.store import FolderStore
from tiebreak.store.dag_builder import CHUNK
from tiebreak.store.dagpb import SYMLINK, Cid, UnixFsNode

from tests.client.cli.cli_world import Run, Trained, refused
from tests.client.crafted_blocks import Blocks
from tests.client.http_stand_in import giving_blocks, serving
from tests.engine.segment_audits.audit_workers import honest
from tests.engine.tasks import linear_task

ROWS = 20_000
"""Rows of 100 bytes in 2 MB: 123 blocks, in 8 leaves of a store."""


@dataclass(frozen=True)
class World:
    """A published job, and a published run of it with every checkpoint."""

    job: Path
    run: Path
    store: Path
    cid: str
    log: str
    root: str

    def copy(self, room: Path) -> Path:
        """Another store with the same content, that a test may harm."""
        return Path(shutil.copytree(self.store, room / "copy"))


def told(shown: Any) -> dict[str, Any]:
    assert shown.exit_code == 0, shown.output
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    from tiebreak.cli.app import app
    from typer.testing import CliRunner

    torch.set_num_threads(1)
    room = tmp_path_factory.mktemp("published")
    generator = torch.Generator().manual_seed(1)
    data = {"x": torch.randn(ROWS, 24, generator=generator), "y": torch.randint(0, 3, (ROWS,), generator=generator)}
    Job.from_task(lambda: replace(linear_task(steps=8, interval=2), dataset=data, batch_size=3)).write(room / "job")

    def run(*words: object) -> dict[str, Any]:
        return told(CliRunner().invoke(app, [str(word) for word in (*words, "--store", room / "store", "--json")]))

    trained = run("train", room / "job", "--run", room / "run", "--publish-every", 1)
    cid = run("job", "publish", room / "job")["cid"]
    return World(room / "job", room / "run", room / "store", cid, trained["published_log"], trained["checkpoint_root"])


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Workers are calls in this process, but where processes are what is tested."""
    if "processes" not in request.node.name:
        monkeypatch.setattr(segment_audits, "process_workers", lambda threads: honest)


def far(run: Run, world: World, room: Path) -> Path:
    """The job in a directory without its data."""
    found = told(
        run("job", "fetch", world.cid, "--out", room / "far", "--without-data", "--store", world.store, "--json")
    )
    assert found["has_data"] is False and found["data_bytes"] == ROWS * (96 + 8)
    return room / "far"


def test_a_job_comes_whole_or_without_its_data(run: Run, world: World, tmp_path: Path) -> None:
    shown = run("job", "fetch", world.cid, "--out", tmp_path / "near", "--store", world.store)
    assert shown.exit_code == 0 and "2.1 MB" in shown.stdout
    assert {path.name for path in (tmp_path / "near").iterdir()} == set(JOB_FILES)
    for name in JOB_FILES:
        assert (tmp_path / "near" / name).read_bytes() == (world.job / name).read_bytes()
    job = far(run, world, tmp_path)
    assert {path.name for path in job.iterdir()} == {*JOB_FILES, "elsewhere.json"} - {"data.safetensors"}
    assert lies_elsewhere(job) and not list(tmp_path.glob(".far*"))
    shown_far, shown_near = (told(run("job", "show", one, "--json")) for one in (job, world.job))
    # The time of a step is measured each time.
    assert shown_far | {"step_seconds": 0} == shown_near | {"step_seconds": 0}


def test_an_audit_of_one_interval_fetches_the_blocks_of_its_batches(run: Run, world: World, tmp_path: Path) -> None:
    sent = list[int]()
    with serving(giving_blocks(FolderStore(world.store), sent=sent)) as url:
        words = ("audit", world.log, "--run", tmp_path / "a", "--store", f"gateway+{url}")
        found = told(run(*words, "--share", 0.25, "--result", tmp_path / "1.json", "--json"))
        assert found["right_intervals"] == 1
        # Two steps of three rows, each with a float row and a label, in blocks of 16 KiB (the last may be shorter).
        count = found["fetched_data_bytes"]
        assert 0 < count <= 2 * 3 * 2 * 2 * 16384 and count < ROWS * 104 / 4
        assert not any(size >= CHUNK for size in sent), "no leaf of the data came whole"
        again = told(run(*words, "--share", 1, "--result", tmp_path / "2.json", "--json"))
        assert again["agrees"] is True and again["checkpoint_root"] == world.root
        whole = again["fetched_data_bytes"]
    assert count + whole <= 8 * 3 * 2 * 2 * 16384


def damaged(store: Path) -> None:
    for path in store.glob("blocks/*/*/*"):
        if path.stat().st_size == CHUNK:
            path.write_bytes(bytes(CHUNK))


def lost(store: Path) -> None:
    for path in store.glob("blocks/*/*/*"):
        if path.stat().st_size == CHUNK:
            path.unlink()


@pytest.mark.parametrize("harm", [damaged, lost])
def test_blocks_that_are_wrong_or_lost_come_from_the_next_store(
    harm: Callable[[Path], None], run: Run, world: World, tmp_path: Path
) -> None:
    job, store = far(run, world, tmp_path), world.copy(tmp_path)
    harm(store)
    words = ("audit", job, "--run", tmp_path / "a", "--claim", world.root)
    refused(
        run(*words, "--store", store),
        "far/data.safetensors: block ",
        "of the field ",
        "name another store that has it, or fetch the job with its data, and run the same command again",
    )
    shown = run("audit", world.log, "--workers", 2, "--store", store)
    assert shown.exit_code == 1 and "no worker is left" in shown.stderr and "of the field" in shown.stderr
    assert told(run(*words, "--store", f"{store},{world.store}", "--json"))["agrees"] is True


@pytest.mark.parametrize("record", ["", '{"format": "tiebreak data elsewhere", "version": 1, "job": "x", "data": "y"}'])
def test_a_record_that_says_nothing_is_refused(record: str, run: Run, world: World, tmp_path: Path) -> None:
    job = far(run, world, tmp_path)
    (job / "elsewhere.json").write_text(record)
    words = ("audit", job, "--run", tmp_path / "a", "--claim", world.root, "--store", world.store)
    said = refused(run(*words), "elsewhere.json", "tiebreak job fetch --without-data")
    assert "copy the job again" not in said, "one remedy is enough"


def test_a_job_without_its_data_is_neither_published_nor_posted(run: Run, world: World, tmp_path: Path) -> None:
    job = far(run, world, tmp_path)
    for words in (("job", "publish", job), ("job", "create", job)):
        refused(run(*words), "without its data", "fetch it with its data")
    (tmp_path / "full").mkdir()
    shutil.copytree(world.job, tmp_path / "full", dirs_exist_ok=True)
    (tmp_path / "full" / "key").write_text("secret")
    refused(run("job", "publish", tmp_path / "full"), "would be published with key in it")
    refused(run("job", "publish", tmp_path / "nowhere"), "there is no job directory")


def test_what_is_no_job_or_too_large_is_not_fetched(run: Run, world: World, tmp_path: Path) -> None:
    out, store = tmp_path / "out", ("--store", world.store)
    refused(run("job", "fetch", world.cid, "--out", tmp_path, *store), "exists already")
    refused(run("job", "fetch", world.log, "--out", out, "--without-data", *store), "is no job")
    refused(run("job", "fetch", "nonsense", "--out", out, *store), "is not a content identifier")
    refused(run("job", "fetch", world.cid, "--out", out, "--max-size", "1MB", *store), "at most", "allow more")
    refused(run("job", "fetch", world.cid, "--out", out, "--without-data", "--max-size", "0.005MB", *store), "at most")
    refused(run("job", "fetch", world.cid, "--out", out, "--store", tmp_path / "empty"), "has no block")
    refused(run("job", "fetch", "1", "--out", out, *store), "no contract is given")
    bad = shutil.copytree(world.job, tmp_path / "bad")
    (bad / "spec.json").write_text("{}")
    cid = FolderStore(tmp_path / "store").add_directory(bad)
    for words in ((), ("--without-data",)):
        refused(run("job", "fetch", cid, "--out", out, *words, "--store", tmp_path / "store"), "is not valid")
    assert not out.exists()


# Jobs of strangers, fetched by the names of their files.


EXTRA = {
    ".git/config": b"[core]\n\tfsmonitor = touch /tmp/ran\n",
    "torch.py": b"open('/tmp/ran', 'w')\n",
    "sitecustomize.py": b"open('/tmp/ran', 'w')\n",
    "conftest.py": b"open('/tmp/ran', 'w')\n",
    "here.pth": b"import torch\n",
    "Program.json": b"{}",
    "data.cache": b"?",
    "elsewhere.json": b"{}",
}


@pytest.fixture
def store(tmp_path: Path) -> Blocks:
    return Blocks(tmp_path / "store")


def entries(store: Blocks, job: Path) -> dict[str, Cid]:
    """The files of a job, added to the store."""
    return {path.name: Cid.parse(store.add_file(path)) for path in sorted(job.iterdir())}


def listed(store: Blocks, files: dict[str, Cid]) -> str:
    return str(store.directory(*sorted(files.items(), key=lambda item: item[0].encode())))


@pytest.mark.parametrize("without_data", [False, True])
def test_what_is_no_file_of_the_job_is_left_out_and_named(
    run: Run, trained: Trained, store: Blocks, tmp_path: Path, without_data: bool
) -> None:
    files = entries(store, trained.job)
    for name, data in EXTRA.items():
        first, _, rest = name.partition("/")
        made = Cid.parse(store.add_bytes(data))
        files[first] = store.directory((rest, made)) if rest else made
    files["\x1b[2J"] = files["a/b"] = files[".."] = files["torch.py"]
    files["link"] = store.node(UnixFsNode(SYMLINK, b"/etc/passwd", None))
    words = ("job", "fetch", listed(store, files), "--out", tmp_path / "job", "--store", tmp_path / "store", "--json")
    shown = run(*words, *(["--without-data"] if without_data else []))
    assert shown.exit_code == 0, shown.output
    kept = (set(JOB_FILES) - {"data.safetensors"}) | {"elsewhere.json"} if without_data else set(JOB_FILES)
    assert {path.name for path in (tmp_path / "job").iterdir()} == kept
    for path in trained.job.iterdir():
        if path.name in kept:
            assert (tmp_path / "job" / path.name).read_bytes() == path.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job", "store"]
    (said,) = shown.stderr.strip().splitlines()
    assert "'\\x1b[2J'" in said and "'..'" in said and "'.git'" in said and "and 7 more" in said and "\x1b" not in said
