"""Receipts as statements of in-toto in signed envelopes: the real `model-signing`, `securesystemslib` and eth-keys take
them, and what an attacker changes is told in one sentence."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from eth_keys.constants import SECPK1_N
from roundlog.generation import parse_generation_receipt
from roundlog.training import ReceiptError
from tiebreak.attestation.statement import StatementError, model_digest, model_files
from tiebreak.cli.failures import CommandError
from tiebreak.cli.receipt_files import ReceiptForm, SigningOptions, read_receipt_file
from tiebreak.transactions.keys import devnet_account, sign_text

from tests.client.cli.cli_world import Run, Trained, refused
from tests.engine.generation.test_generation_receipt import STRANGE, places, with_value

REPOSITORY = Path(__file__).parents[3]
MODEL = REPOSITORY / "conformance" / "models" / "llama"
RECEIPT = REPOSITORY / "conformance" / "receipts" / "llama_text.json"
SIGNER, STRANGER = devnet_account(3), devnet_account(4)
KEY = {"TIEBREAK_PRIVATE_KEY": bytes(SIGNER.key).hex()}
FORMS = ("in-toto", "model-signing")
PACKAGES = "the extra `in-toto` and package `model-signing` are not installed (`make test-slow` does)"


def write_keys(room: Path) -> None:
    """Write two P-256 keys in PEM, as openssl does, and their public keys."""
    ec = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ec", reason=PACKAGES)
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    for name, curve in (("key", ec.SECP256R1()), ("foreign", ec.SECP256R1()), ("other-curve", ec.SECP384R1())):
        key, path = ec.generate_private_key(curve), room / f"{name}.pem"
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
        path.chmod(0o600)
        (room / f"{name}.pub").write_bytes(
            key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        )


@dataclass(frozen=True)
class Room:
    """A model's folder, keys, and statements about a text of it, by their forms."""

    place: Path

    @property
    def model(self) -> Path:
        return self.place / "llama"

    def file(self, form: str) -> Path:
        return self.place / f"{form}.json"

    def envelope(self, form: str) -> dict[str, Any]:
        plain = json.loads(self.file(form).read_bytes())
        found: dict[str, Any] = plain.get("dsseEnvelope", plain)
        return found


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Room:
    pytest.importorskip("securesystemslib", reason=PACKAGES)
    monkeypatch.setenv(*next(iter(KEY.items())))
    found = Room(tmp_path)
    shutil.copytree(MODEL, found.model)
    write_keys(tmp_path)
    receipt = parse_generation_receipt(RECEIPT.read_bytes())
    for form in FORMS:
        options = SigningOptions(sign=True, signing_key=tmp_path / "key.pem", form=ReceiptForm(form))
        options.writer().write(found.file(form), receipt, model=found.model)
    return found


@pytest.fixture
def odd_model(tmp_path: Path) -> Path:
    """A folder whose files are in another order as texts than as paths."""
    for name in ("a.txt", "a/b", "a/.gitignore", "é", "a-", ".gitignore", ".git/x", "sub/.git/y", "b"):
        path = tmp_path / "odd model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name * 3)
    return tmp_path / "odd model"


def test_a_models_files_are_in_the_order_of_their_paths(odd_model: Path) -> None:
    assert [*model_files(odd_model, odd_model / "b")] == ["a/.gitignore", "a/b", "a-", "a.txt", "sub/.git/y", "é"]
    (odd_model / "link").symlink_to(odd_model / "b")
    with pytest.raises(StatementError, match="is a link, or no file"):
        model_files(odd_model, odd_model)


@pytest.mark.slow
def test_a_models_digest_is_that_of_model_signing(odd_model: Path) -> None:
    hashing = pytest.importorskip("model_signing.hashing", reason=PACKAGES)
    from model_signing._signing.signing import Payload

    for model in (odd_model, odd_model / "a.txt", MODEL):
        [subject] = Payload(hashing.hash(model)).statement.pb.subject
        assert {"sha256": model_digest(model_files(model, model.parent))} == dict(subject.digest)


@pytest.mark.slow
def test_model_signing_verifies_a_bundle_until_a_file_is_added(room: Room, run: Run) -> None:
    pytest.importorskip("model_signing", reason=PACKAGES)

    def verified(key: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "model_signing", "verify", "key", room.model]
        words += ["--signature", room.file("model-signing"), "--public_key", room.place / f"{key}.pub"]
        return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)

    done = verified("key")
    assert done.returncode == 0 and "succeeded" in done.stdout, done
    assert verified("foreign").returncode != 0
    (room.model / "added.py").write_text("")
    assert verified("key").returncode != 0
    for form in FORMS:
        said = refused(run("verify", room.file(form), "--model", room.model, "--public-key", room.place / "key.pub"))
        assert "is about other files" in said and "a file was added, taken away or changed" in said


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_securesystemslib_and_in_toto_take_it(room: Room, form: str) -> None:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import SSlibKey

    files = (room.place / f"{name}.pub" for name in ("key", "foreign"))
    right, foreign = (SSlibKey.from_crypto(load_pem_public_key(file.read_bytes())) for file in files)
    envelope = Envelope.from_dict(room.envelope(form))
    assert [*envelope.verify([right, foreign], 1)] == [right.keyid]
    with pytest.raises(VerificationError):
        envelope.verify([foreign], 1)
    statement = pytest.importorskip("in_toto_attestation.v1.statement", reason=PACKAGES)
    from google.protobuf import json_format

    parsed = statement.Statement.copy_from_pb(json_format.Parse(envelope.payload, statement.spb.Statement()))
    parsed.validate()


@pytest.mark.slow
def test_verify_repeats_the_text_of_a_statement(room: Room, run: Run) -> None:
    words = ("--model", room.model, "--signer", SIGNER.address, "--public-key", room.place / "key.pub")
    for form in FORMS:
        done = run("verify", room.file(form), *words)
        assert done.exit_code == 0 and SIGNER.address in done.stdout, done.output
    words = ("verify", room.file("in-toto"), *words[-2:], "--job", room.place)
    refused(run(*words), "is the receipt of a text", code=2)
    done = run("verify", room.file("in-toto"), "--offline")
    assert done.exit_code == 0 and "are not checked: name the key's file with --public-key" in done.stderr


@pytest.mark.slow
def test_the_lines_of_the_page_check_the_accounts_signature(room: Room) -> None:
    page = (REPOSITORY / "docs" / "receipt.md").read_text()
    [lines] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(lines.splitlines()) <= 30
    (room.place / "check.py").write_text(lines)

    def told(file: Path) -> tuple[int, str]:
        words = [sys.executable, room.place / "check.py", file]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    for form in FORMS:
        assert told(room.file(form)) == (0, f"signed by {SIGNER.address.lower()}\n")
    for name in ("a high s", "another payload type", "a foreign account"):
        code, said = told(changed(room, "in-toto", LIES[name][0]))
        assert code == 1 and said, name


def changed(room: Room, form: str, change: Callable[[dict[str, Any]], object]) -> Path:
    """Write a statement's file with a change of its envelope."""
    plain = json.loads(room.file(form).read_bytes())
    change(plain.get("dsseEnvelope", plain))
    path = room.place / "changed.json"
    path.write_text(json.dumps(plain))
    return path


def in_payload(old: bytes, new: bytes) -> Callable[[dict[str, Any]], object]:
    def change(envelope: dict[str, Any]) -> None:
        payload = base64.b64decode(envelope["payload"])
        assert old in payload
        envelope["payload"] = base64.b64encode(payload.replace(old, new, 1)).decode()

    return change


def signature(envelope: dict[str, Any], place: int) -> bytes:
    return base64.b64decode(envelope["signatures"][place]["sig"])


def set_signature(envelope: dict[str, Any], place: int, sig: bytes) -> None:
    envelope["signatures"][place]["sig"] = base64.b64encode(sig).decode()


def high_s(envelope: dict[str, Any]) -> None:
    sig = signature(envelope, 1)
    s = SECPK1_N - int.from_bytes(sig[32:64])
    set_signature(envelope, 1, sig[:32] + s.to_bytes(32) + bytes([55 - sig[64]]))


def sign_as(account: Any, name: str | None = None) -> Callable[[dict[str, Any]], object]:
    def change(envelope: dict[str, Any]) -> None:
        payload = base64.b64decode(envelope["payload"]).decode()
        text = f"DSSEv1 28 application/vnd.in-toto+json {len(payload)} {payload}"
        sig = base64.b64encode(sign_text(account, text)).decode()
        envelope["signatures"][1] = {"keyid": name or account.address.lower(), "sig": sig}

    return change


def swap_keys(envelope: dict[str, Any]) -> None:
    first, second = envelope["signatures"]
    first["keyid"], second["keyid"] = second["keyid"], first["keyid"]


LIES: dict[str, tuple[Callable[[dict[str, Any]], object], int, str]] = {
    "nothing": (lambda envelope: None, 0, ""),
    "a token": (in_payload(b'"tokens":[', b'"tokens":[3,'), 1, "does not follow from"),
    "the model's digest": (in_payload(b'"digest":{"sha256":"', b'"digest":{"sha256":"00'), 1, "of one model"),
    "a name": (in_payload(b'"name":"llama"}', b'"name":"another"}'), 3, "signature of 0x"),
    "another receipt's revision": (in_payload(b'"revision":"1"', b'"revision":"2"'), 3, "its signature is not"),
    "a key twice": (in_payload(b'{"_type"', b'{"_type":1,"_type"'), 1, "has a key twice"),
    "another payload type": (lambda envelope: envelope.update(payloadType="text/json"), 1, "payload type 'text/json'"),
    "a high s": (high_s, 3, "with a low s"),
    "a foreign account": (sign_as(STRANGER), 3, "its envelope is signed by"),
    "a foreign account by the signer's name": (
        sign_as(STRANGER, SIGNER.address.lower()),
        3,
        "is not that of this account",
    ),
    "no account": (lambda envelope: envelope["signatures"].pop(), 3, "is signed by no account"),
    "no key": (lambda envelope: envelope["signatures"].pop(0), 3, "is signed by the keys none"),
    "a key's signature": (lambda e: set_signature(e, 0, signature(e, 0)[:-1] + b"\0"), 3, "not that of this key"),
    "swapped names": (swap_keys, 3, "is not that of this account"),
    "a signature twice": (lambda e: e["signatures"].append(e["signatures"][0] | {}), 1, "Multiple signatures"),
    "many signatures": (
        lambda envelope: envelope["signatures"].extend({"keyid": str(n), "sig": ""} for n in range(15)),
        1,
        "more than 16 signatures",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LIES)
def test_a_changed_envelope_is_told_in_one_sentence(room: Room, run: Run, name: str) -> None:
    change, code, said = LIES[name]
    done = run("verify", changed(room, "in-toto", change), "--offline", "--public-key", room.place / "key.pub")
    assert done.exit_code == code and said in " ".join(done.output.split()), done.output
    assert len((done.stderr if code == 1 else done.stdout).strip().splitlines()) == 1 or code == 0


@pytest.mark.slow
def test_a_key_that_did_not_sign_is_told(room: Room, run: Run) -> None:
    for form in FORMS:
        done = run("verify", room.file(form), "--offline", "--public-key", room.place / "foreign.pub")
        assert done.exit_code == 3 and "and not by" in done.stdout
    refused(run("verify", room.file("in-toto"), "--offline", "--public-key", MODEL / "config.json"), "no public key")
    done = run("verify", RECEIPT, "--offline", "--public-key", room.place / "key.pub")
    assert done.exit_code == 3 and "in no envelope" in done.stdout
    listed = b'"resources":[{"algorithm":"sha256","digest":"'
    changed(room, "model-signing", in_payload(listed, listed + b"00"))
    refused(run("verify", room.place / "changed.json", "--offline"), "has another subject than the files that it lists")


@pytest.mark.slow
def test_no_field_of_a_strangers_file_ends_in_a_defect(room: Room) -> None:
    envelope, path = room.envelope("model-signing"), room.place / "changed.json"
    for data in (envelope, json.loads(base64.b64decode(envelope["payload"]))):
        for place in places(data):
            for strange in STRANGE:
                path.write_text(json.dumps(with_value(data, place, strange)))
                with contextlib.suppress(CommandError, ReceiptError):
                    held = read_receipt_file(path)
                    assert held.fault(None, room.place / "key.pub") is not None


def test_what_cannot_be_signed_is_refused(
    run: Run, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("receipt", trained.run, "--job", trained.job, "--out", tmp_path / "receipt.json")
    refused(run(*words, "--signing-key", tmp_path / "key.pem"), "add --format in-toto", code=2)
    refused(run(*words, "--format", "model-signing"), "add --signing-key FILE", code=2)
    monkeypatch.setitem(sys.modules, "securesystemslib.dsse", None)
    monkeypatch.delitem(sys.modules, "tiebreak.attestation.envelope", raising=False)
    refused(run(*words, "--format", "in-toto", "--sign", env=KEY), "pip install 'tiebreak[in-toto]'")
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(100 << 20)
    refused(run("verify", large, "--offline"), "has more than 67108864 bytes")
    assert not (tmp_path / "receipt.json").exists()


@pytest.mark.slow
def test_a_runs_statement_is_about_the_jobs_files(run: Run, trained: Trained, tmp_path: Path) -> None:
    pytest.importorskip("securesystemslib", reason=PACKAGES)
    write_keys(tmp_path)
    path, job = tmp_path / "run.json", Path(shutil.copytree(trained.job, tmp_path / "job"))
    words = ("receipt", trained.run, "--job", job, "--out", path, "--format")
    for name, said in (("other-curve.pem", "none of P-256"), ("key.pub", "run chmod 600"), ("no", "cannot be read")):
        refused(run(*words, "in-toto", "--signing-key", tmp_path / name), said)
    refused(run(*words, "model-signing", "--signing-key", tmp_path / "key.pem"), "a run has none", code=2)
    assert run(*words, "in-toto", "--sign", "--signing-key", tmp_path / "key.pem", env=KEY).exit_code == 0
    statement = json.loads(base64.b64decode(json.loads(path.read_text())["payload"]))
    assert [one["name"] for one in statement["subject"]] == [*sorted(one.name for one in job.iterdir()), "final state"]
    words = ("verify", path, "--job", job, "--dir", tmp_path / "work", "--public-key", tmp_path / "key.pub")
    done = run(*words)
    assert done.exit_code == 0 and "Right: all 2 intervals" in done.stdout, done.output
    refused(run(*words[:2], *words[-2:], "--model", MODEL), "and no model", code=2)
    with (job / "program.json").open("ab") as file:
        file.write(b"\n")
    refused(run(*words), "program.json has another SHA-256 than in its subject")
