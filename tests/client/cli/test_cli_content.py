"""Options about content: several stores, the pinning service, the retention; and how progress is shown."""

from __future__ import annotations

import io
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rich.console import Console
from tiebreak.cli import output
from tiebreak.cli.role_process import NoticePrinter
from tiebreak.roles.notices import Notice, What
from tiebreak.store import open_store
from tiebreak.transactions.keys import devnet_account

from tests.client.cli.cli_world import Chain, Run, Trained
from tests.client.crafted_blocks import everything

POST = ("--reward", "0.5ether", "--clock", "6h", "--referee", devnet_account(3).address)


def test_kubo_and_a_pinning_service_keep_a_job(
    run: Run, chain: Chain, trained: Trained, tmp_path: Path, kubo_url: str
) -> None:
    places, where = ("--store", kubo_url, "--pin-service", "keeper"), ("--dir", tmp_path / "role", "--json")
    result = run("job", "create", trained.job, *POST, *places, *where, env=chain.environment(0))
    assert result.exit_code == 0 and result.stderr == "", result.stderr
    cid = chain.game.job(json.loads(result.stdout)["job"]).job_cid
    open_store(kubo_url).get_directory(cid, tmp_path / "found", everything, max_bytes=1 << 30)
    for path in trained.job.iterdir():
        assert (tmp_path / "found" / path.name).read_bytes() == path.read_bytes()


def test_notices_of_several_threads_are_lines_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where a writing takes long, as into a pipe that is full."""

    class Slow(io.StringIO):
        def write(self, text: str) -> int:
            time.sleep(0.001)
            return super().write(text)

    monkeypatch.setattr(sys, "stdout", written := Slow())
    notices = [Notice(role="auditor", what=What.STEP, text=f"step {number}") for number in range(40)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(NoticePrinter(as_json=True).show, notices))
    texts = [json.loads(line)["text"] for line in written.getvalue().splitlines()]
    assert sorted(texts) == sorted(notice.text for notice in notices)


@pytest.mark.parametrize("terminal", [False, True])
def test_stages_show_what_is_done_and_the_time_that_is_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80, highlight=False)
    monkeypatch.setattr(output, "errors", lambda: console)
    for pause in (10.0, 0.01):  # nothing is said of what is quick
        assert terminal or console.file.getvalue() == ""  # type: ignore[attr-defined]
        monkeypatch.setattr(output, "_SECONDS_BETWEEN_LINES", pause)
        with output.progress("Working", stages=2) as bar:
            bar.tell("captures")
            bar.tell("compares", 0.2)
            bar._began -= 60.0
            print("a result", flush=True)
            bar.tell("compares", 0.5, "kernel [b]2,000 of 4,000")
            time.sleep(0.2 if pause < 1 else 0)
    assert capsys.readouterr().out == 2 * "a result\n"
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "2/2 compares, kernel [b]2,000 of 4,000, 1m 40s left" in said
    assert terminal or all(line.startswith("Working: 2/2 ") for line in said.splitlines())
    assert terminal or 1 <= len(said.splitlines()) <= 5  # what stays the same is said at longer and longer intervals
