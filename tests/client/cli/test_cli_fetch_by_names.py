"""Jobs of strangers, fetched by the names of their files: nothing else comes to the disk, and no more than they say."""

from __future__ import annotations

from pathlib import Path

import pytest
from roundlog.training.job import JOB_FILES
from tiebreak.store.dagpb import SYMLINK, Cid, UnixFsNode

from tests.client.cli.cli_world import Run, Trained, refused
from tests.client.crafted_blocks import Blocks, repeated

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


def test_a_job_s_files_are_bounded_by_its_program_before_their_first_byte(
    run: Run, trained: Trained, store: Blocks, tmp_path: Path
) -> None:
    """Three gibibytes of one leaf cost their publisher nothing."""
    for name in ("data.safetensors", "initial.safetensors", "schedule.safetensors", "data.blocks", "program.json"):
        files = entries(store, trained.job)
        files[name], leaf = repeated(store, 3 << 30)
        (store._blocks / leaf.digest.hex()[:2] / leaf.digest.hex()[2:4] / leaf.digest.hex()).unlink()
        words = ("job", "fetch", listed(store, files), "--out", tmp_path / "job", "--store", tmp_path / "store")
        refused(run(*words), f"{3 << 30} bytes", "at most", "allowed")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]
