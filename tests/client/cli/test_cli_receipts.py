"""`tiebreak receipt` and `tiebreak verify`: answers, exit codes, signatures, and what is no receipt."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from roundlog.commitments import MerkleTree
from tiebreak.transactions.keys import devnet_account

from tests.client.cli.cli_world import Run, Trained, refused
from tests.engine.kept_jobs import KEPT_JOBS

KEY = {"TIEBREAK_PRIVATE_KEY": bytes(devnet_account(3).key).hex()}
SIGNER = devnet_account(3).address


@pytest.fixture(scope="module")
def signed(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed receipt of the run. Read only."""
    from tiebreak.cli.app import app
    from typer.testing import CliRunner

    path = tmp_path_factory.mktemp("receipt") / "receipt.json"
    words = ["receipt", trained.run, "--job", trained.job, "--out", path, "--sign"]
    assert CliRunner().invoke(app, [str(word) for word in words], env=KEY).exit_code == 0
    return path


@pytest.fixture
def receipt(signed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(signed, tmp_path / "receipt.json"))


def changed(receipt: Path, interval: int) -> None:
    """One root changed, and everything that follows from it made to fit; unsigned."""
    plain = json.loads(receipt.read_text())
    plain["state_roots"][interval] = "0x" + "12" * 32
    roots = [bytes.fromhex(root[2:]) for root in plain["state_roots"]]
    plain |= {"checkpoint_root": "0x" + MerkleTree(roots).root.hex(), "final_state_root": plain["state_roots"][-1]}
    del plain["signer"], plain["signature"]
    receipt.write_text(json.dumps(plain))


def test_a_receipt_says_what_the_run_has_come_to(run: Run, trained: Trained, tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    words = ("receipt", trained.run, "--job", trained.job, "--out", path)
    shown = run(*words)
    assert shown.exit_code == 0 and "0x" + trained.root.hex() in shown.stdout and "signer" not in shown.stdout
    found = json.loads(run(*words, "--json").stdout)
    assert found["checkpoint_root"] == "0x" + trained.root.hex() and found["signer"] is None
    plain = json.loads(path.read_text())
    assert plain["spec"] == json.loads((trained.job / "spec.json").read_text())
    assert "signer" not in plain and "signature" not in plain


def test_a_right_receipt_is_right_whole_and_in_part(run: Run, trained: Trained, receipt: Path, tmp_path: Path) -> None:
    words = ("verify", receipt, "--job", trained.job, "--dir", tmp_path / "work")
    whole = run(*words)
    assert whole.exit_code == 0
    assert whole.stdout == f"Right: all 2 intervals come to the state roots of {receipt}; signed by {SIGNER}.\n"
    part = run(*words, "--run", trained.run, "--share", "0.5", "--signer", SIGNER)
    assert part.exit_code == 0 and "Right as far as it was repeated: 1 of 2 intervals" in part.stdout
    assert "unnoticed with a probability of 50 %" in part.stdout and "repeat all to be sure" in part.stdout
    found = json.loads(run(*words, "--run", trained.run, "--json").stdout)
    assert found["right"] is True and found["repeated_intervals"] == 2 and found["one_wrong_unnoticed"] == 0.0


def test_one_changed_root_is_found_at_its_interval(run: Run, trained: Trained, receipt: Path, tmp_path: Path) -> None:
    changed(receipt, 1)
    words = ("verify", receipt, "--job", trained.job, "--dir", tmp_path / "work")
    for more in ((), ("--run", trained.run)):
        result = run(*words, *more)
        assert result.exit_code == 3
        assert "WRONG: interval 2 of 2 (steps 2 to 3)" in result.stdout
        found = json.loads(run(*words, *more, "--json").stdout)
        assert found["right"] is False and found["first_wrong_interval"] == 1


def test_the_receipt_of_another_job_is_not_judged(run: Run, trained: Trained, receipt: Path, tmp_path: Path) -> None:
    other = KEPT_JOBS / "gpt_bf16"
    words = ("verify", receipt, "--job", other, "--dir", tmp_path / "work")
    refused(run(*words), str(receipt), "give the job that the receipt")
    refused(run("receipt", trained.run, "--job", other, "--out", tmp_path / "r"), "another job's")
    assert not (tmp_path / "r").exists() and not (tmp_path / "work").exists()


@pytest.mark.parametrize("change", [{"date": "2020-01-01T00:00:00Z"}, {"signer": "0x" + "12" * 20}], ids=str)
def test_a_signature_that_does_not_fit_is_named(
    run: Run, trained: Trained, receipt: Path, tmp_path: Path, change: dict[str, str]
) -> None:
    receipt.write_text(json.dumps(json.loads(receipt.read_text()) | change))
    words = ("verify", receipt, "--job", trained.job, "--dir", tmp_path / "work")
    result = run(*words)
    assert result.exit_code == 3 and "its signature is not that of" in result.stdout
    assert "nothing was repeated" in result.stdout and not (tmp_path / "work").exists()
    assert json.loads(run(*words, "--json").stdout)["wrong_signature"] is not None


def test_another_signer_or_none_is_named(run: Run, trained: Trained, receipt: Path, tmp_path: Path) -> None:
    words = ("verify", receipt, "--job", trained.job, "--dir", tmp_path / "work", "--signer")
    result = run(*words, devnet_account(4).address)
    assert result.exit_code == 3 and f"{SIGNER} has signed it, and not" in result.stdout
    refused(run(*words, "0x12"), "the signer 0x12 is not an address")
    plain = json.loads(receipt.read_text())
    del plain["signer"], plain["signature"]
    receipt.write_text(json.dumps(plain))
    result = run(*words, SIGNER)
    assert result.exit_code == 3 and "nobody has signed it" in result.stdout


def test_what_cannot_be_verified_is_refused(run: Run, trained: Trained, receipt: Path, tmp_path: Path) -> None:
    words = ("--job", trained.job, "--dir", tmp_path / "work")
    refused(run("verify", receipt, "--job", trained.job, "--dir", trained.run), "another role", "an empty directory")
    receipt.write_text("{}")
    refused(run("verify", receipt, *words), "get the receipt again")
    part = tmp_path / "part"
    part.mkdir()
    (part / "roots").write_bytes((trained.run / "roots").read_bytes()[:32])
    refused(run("receipt", part, "--job", trained.job, "--out", tmp_path / "r"), "1 of 2 checkpoints")
