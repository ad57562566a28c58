"""`tiebreak plot`, and the history that `train` and `audit` leave and speak of."""

from __future__ import annotations

import json
import shutil
import struct
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from roundlog.storage import save_tensors
from roundlog.training.job import Job
from roundlog.training.run_files import HISTORY_FILE, read_history

from tests.client.cli.cli_world import Run, Trained, refused

DRAWN = pytest.mark.skipif(
    __import__("importlib.util").util.find_spec("matplotlib") is None, reason="needs matplotlib: the extra `plot`"
)


@pytest.fixture
def rows(trained: Trained, tmp_path: Path) -> Path:
    """15 rows of the job's data: three batches of 4, and 3 more."""
    job = Job.read(trained.job)
    path = tmp_path / "rows.safetensors"
    save_tensors(path, {name: field[:15].clone() for name, field in job.dataset.items()})
    return path


def text_of(picture: Path) -> str:
    """The text of an SVG's comments: matplotlib names every text there that it draws as shapes."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    root = ElementTree.parse(picture, parser).getroot()
    return "\n".join((one.text or "").strip() for one in root.iter() if one.tag is ElementTree.Comment)


def test_a_training_with_validation_comes_to_the_same_root(
    run: Run, trained: Trained, rows: Path, tmp_path: Path
) -> None:
    words = ("train", trained.job, "--run", tmp_path / "t", "--validate", rows, "--validate-every", "3")
    result = run(*words, "--json")
    found = json.loads(result.stdout)
    assert found["checkpoint_root"] == "0x" + trained.root.hex() and found["resumed_from"] == 0
    assert found["history"] == str(tmp_path / "t" / HISTORY_FILE) and found["history_problem"] is None
    assert "12 of the 15 rows" in result.stderr
    entries = [entry for entry in read_history(tmp_path / "t") if entry.validation is not None]
    assert [entry.step for entry in entries] == [0, 3, 4]
    assert found["validation_loss"] == pytest.approx(entries[-1].validation, rel=1e-6)


def test_what_cannot_be_validated_on_is_refused(run: Run, trained: Trained, rows: Path, tmp_path: Path) -> None:
    words = ("train", trained.job, "--run", tmp_path / "t")
    refused(run(*words, "--validate-every", "3"), "name the rows with --validate", code=2)
    refused(run(*words, "--validate", tmp_path / "no"), f"{tmp_path / 'no'}: does not exist")
    job = Job.read(trained.job)
    save_tensors(rows, {name: field[:3].clone() for name, field in job.dataset.items()})
    refused(run(*words, "--validate", rows), "less than one batch of 4 rows")
    shutil.copy(trained.job / "initial.safetensors", rows)
    refused(run(*words, "--validate", rows), str(rows))
    rows.write_bytes(b"\xff" * 100)
    refused(run(*words, "--validate", rows), str(rows))
    field = next(name for name, one in job.dataset.items() if not one.dtype.is_floating_point)
    fitting = {name: one[:4].clone() for name, one in job.dataset.items()}
    fitting[field].view(-1)[3] = 10**6
    save_tensors(rows, fitting)
    refused(run(*words, "--validate", rows), "the validation set does not fit the job's program")


@pytest.mark.parametrize("command", ["train", "audit"])
def test_a_resumed_run_says_from_where(run: Run, trained: Trained, tmp_path: Path, command: str) -> None:
    words = (command, trained.job, "--run", tmp_path / "r")
    first = run(*words, "--json")
    assert json.loads(first.stdout)["resumed_from"] == 0 and "carries on" not in first.stderr
    again = run(*words, "--json")
    assert json.loads(again.stdout)["resumed_from"] == 4 and "all 4 steps were done already" in again.stderr
    for name in ("roots", "roots.sums"):
        path = tmp_path / "r" / name
        path.write_bytes(path.read_bytes()[:32])
    resumed = run(*words, "--json")
    assert json.loads(resumed.stdout)["resumed_from"] == 2 and "carries on from step 2 of 4" in resumed.stderr


def test_a_history_that_cannot_be_written_is_spoken_of(run: Run, trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "t" / HISTORY_FILE).mkdir(parents=True)
    words = ("train", trained.job, "--run", tmp_path / "t")
    shown = run(*words)
    assert shown.exit_code == 0 and "INCOMPLETE" in shown.stdout and "the run itself is whole" in shown.stdout
    assert "0x" + trained.root.hex() in shown.stdout


@DRAWN
def test_runs_are_drawn_with_validation_and_a_column(run: Run, trained: Trained, rows: Path, tmp_path: Path) -> None:
    odd = tmp_path / "_odd $x$ [red]"
    assert run("train", trained.job, "--run", odd, "--validate", rows).exit_code == 0
    picture = tmp_path / "loss.svg"
    words = ("plot", trained.run, odd, "--out", picture, "--column", "0/lr", "--json")
    found = json.loads(run(*words).stdout)
    assert found["runs"] == {str(trained.run): 4, str(odd): 7}
    said = text_of(picture)
    for part in ("step", "loss", "0/lr", "_odd", "$x$", "validation"):
        assert part in said, part
    before = picture.read_bytes()
    run(*words)
    assert picture.read_bytes() == before, "the same histories make the same picture"
    for name, more in (("loss.png", ()), ("log.png", ("--log-scale",))):
        png = tmp_path / name
        assert "Drew 4 steps of 1 run" in run("plot", trained.run, "--out", png, *more).stdout
        data = png.read_bytes()
        width, height = struct.unpack(">II", data[16:24])
        assert data.startswith(b"\x89PNG") and (width, height) == (1200, 720)


def test_what_cannot_be_drawn_is_refused_in_one_sentence(run: Run, trained: Trained, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "x.png")
    refused(run("plot", trained.run, "--out", tmp_path / "x.pdf"), "neither a PNG nor an SVG", code=2)
    refused(run("plot", trained.run, trained.run, *out), "named twice", code=2)
    refused(run("plot", tmp_path / "no", *out), "there is no run directory")
    refused(run("plot", trained.job, *out), "has no history", "name the directory of a run")
    refused(run("plot", trained.run, *out, "--column", "lr"), "no history has a column 'lr'", "0/lr")
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / HISTORY_FILE).write_text("")
    refused(run("plot", tmp_path / "r", *out), "has no step yet")
    (tmp_path / "r" / HISTORY_FILE).write_text("[]\n")
    refused(run("plot", tmp_path / "r", *out), HISTORY_FILE, "line 1")
    assert not (tmp_path / "x.png").exists()


def test_a_missing_matplotlib_is_named_with_the_command(
    run: Run, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused(run("plot", trained.run, "--out", tmp_path / "x.png"), "pip install 'tiebreak[plot]'")
