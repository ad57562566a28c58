"""Files of receipts: as they are, in a statement of in-toto, or in a signed envelope of one (docs/receipt.md)."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tiebreak.cli import network, output
from tiebreak.cli.failures import CommandError, WrongUsage, extra
from tiebreak.cli.option_groups import option

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount
    from roundlog.generation import GenerationReceipt
    from roundlog.training import Receipt
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import CryptoSigner

    from tiebreak.attestation.statement import Statement
    from tiebreak.evaluation.evaluation_receipt import EvaluationReceipt

    AnyReceipt = Receipt | GenerationReceipt | EvaluationReceipt

SIGNING_KEY = option("P-256 key (PEM, of mode 0600) that signs the statement in its envelope, too.", metavar="FILE")

_AGAIN = "get the receipt again from its author."


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of `verify`: facts for programs, and lines for people."""

    is_right: bool
    plain: dict[str, object]
    lines: list[str]


class ReceiptForm(enum.StrEnum):
    """Forms of a receipt's file."""

    JSON = "json"
    IN_TOTO = "in-toto"
    MODEL_SIGNING = "model-signing"


@dataclass(frozen=True, kw_only=True)
class SigningOptions:
    """Options of the keys that sign a receipt, and of its file's form."""

    panel: ClassVar = "The receipt"
    sign: bool = network.SIGN
    keystore: Path | None = network.KEYSTORE
    signing_key: Path | None = SIGNING_KEY
    form: ReceiptForm = option(
        "The receipt alone; a Statement of in-toto on the model, or on the job's files, in an envelope (DSSE) if it is "
        "signed; or one in a bundle that `model_signing verify key` accepts.",
        ReceiptForm.JSON,
        name="--format",
    )

    def writer(self) -> ReceiptWriter:
        """Return what signs and writes a receipt, with the keys, which are read now. Raises WrongUsage, CommandError,
        AccountError, SigningKeyError."""
        form, key = self.form, None
        if form is ReceiptForm.JSON and self.signing_key is not None:
            raise WrongUsage("--signing-key signs a statement: add --format in-toto, or model-signing.")
        if form is ReceiptForm.MODEL_SIGNING and self.signing_key is None:
            raise WrongUsage("--format model-signing is signed by a P-256 key: add --signing-key FILE.")
        if form is not ReceiptForm.JSON and (self.sign or self.signing_key is not None):
            with extra("in-toto", "signed statements need"):
                from tiebreak.attestation.envelope import read_signing_key
            key = None if self.signing_key is None else read_signing_key(self.signing_key)
        return ReceiptWriter(network.account(self.keystore) if self.sign else None, key, form)


@dataclass(frozen=True, slots=True)
class ReceiptWriter:
    """Keys and form of a receipt's file."""

    account: LocalAccount | None
    key: CryptoSigner | None
    form: ReceiptForm

    def write(
        self, path: Path, receipt: AnyReceipt, *, model: Path | None = None, job: Path | None = None
    ) -> AnyReceipt:
        """Write a receipt, whole or not at all, and return it as it is signed. model, job: what its statement is about.
        Raises CommandError if it is too large, ReceiptError, StatementError, OSError."""
        from roundlog.json_text import canonical_json
        from roundlog.storage import replace_file
        from roundlog.training import MAX_RECEIPT_BYTES, Receipt

        if self.account is not None:
            receipt = signed_receipt(receipt, self.account)
        if self.form is not ReceiptForm.JSON:
            from tiebreak.attestation.statement import statement_on_job, statement_on_model

            if model is not None:
                lists_files = self.form is ReceiptForm.MODEL_SIGNING
                plain = statement_on_model(receipt.plain(), model, path, lists_files=lists_files)
            elif job is not None and self.form is ReceiptForm.IN_TOTO:
                plain = statement_on_job(receipt.plain(), job)
            else:
                raise WrongUsage("--format model-signing is about a model, and a run has none: give --format in-toto.")
            if self.account is not None or self.key is not None:
                from tiebreak.attestation.envelope import bundle_of, sealed

                envelope = sealed(canonical_json(plain), self.account, self.key)
                is_bundle = self.form is ReceiptForm.MODEL_SIGNING and self.key is not None
                plain = bundle_of(envelope, self.key) if is_bundle else envelope.to_dict()
            text = json.dumps(plain, indent=1) + "\n"
        elif isinstance(receipt, Receipt):
            receipt.write(path)
            return receipt
        else:
            text = receipt.to_json()
        if len(text) > MAX_RECEIPT_BYTES:
            raise CommandError(f"{path} would have {len(text)} bytes, and {MAX_RECEIPT_BYTES} are read: ask for less.")
        with replace_file(path) as file:
            file.write(text.encode())
        return receipt


@dataclass(frozen=True, slots=True)
class ReceiptFile:
    """What is in a receipt's file, checked against itself, but for signatures."""

    receipt: AnyReceipt
    statement: Statement | None = None
    envelope: Envelope | None = None

    def fault(self, signer: str | None, public_key: Path | None) -> str | None:
        """Return the fault of its signatures, in one clause. signer: the account that has to have signed, with its
        checksum; public_key: file of a key that has to have signed its envelope, too. Raises SigningKeyError."""
        fault = wrong_signature(self.receipt, signer)
        if self.envelope is None:
            return fault or (None if public_key is None else f"it is in no envelope for {public_key} to have signed")
        from tiebreak.attestation.envelope import other_keys, read_public_key, wrong_envelope

        key = None if public_key is None else read_public_key(public_key)
        if key is None and (others := other_keys(self.envelope)):
            output.warn(f"Signatures of {', '.join(others)} are not checked: name the key's file with --public-key.")
        return fault or wrong_envelope(self.envelope, self.receipt.signer, key)

    def require_subject(self, file: Path, model: Path | None, job: Path | None) -> None:
        """Refuse a statement about another model, or another job. Raises CommandError, StatementError."""
        if self.statement is None:
            return
        if self.statement.lists_files and model is None and job is not None:
            model = file.absolute().parent  # a folder for the Hub, whose signature has the receipt of its run
            if not (model / "config.json").is_file():
                raise CommandError(f"{file} is about the model in whose folder it lies: put it there.")
        try:
            other = self.statement.other_file(file, model, job)
        except OSError as error:
            raise CommandError(f"{error.filename} cannot be read ({error.strerror}): check the path.") from error
        if other is not None:
            raise CommandError(f"{file} is about other files: {other}; give those that it was written about.")


def read_receipt_file(path: Path) -> ReceiptFile:
    """Read the receipt in a file that is not trusted. Raises CommandError, ReceiptError."""
    from roundlog.json_text import canonical_json, parse_json
    from roundlog.storage import open_regular
    from roundlog.training import MAX_RECEIPT_BYTES, RECEIPT_FORMATS, Receipt, ReceiptError, parse_receipt

    try:
        with open_regular(path) as file:
            data = file.read(MAX_RECEIPT_BYTES + 1)
    except OSError as error:
        raise CommandError(f"{path} cannot be read ({error.strerror}): check the path.") from error
    try:
        if len(data) > MAX_RECEIPT_BYTES:
            raise ValueError(f"has more than {MAX_RECEIPT_BYTES} bytes")
        plain, envelope, statement = parse_json(data), None, None
        if isinstance(plain, dict) and plain.keys() & {"payload", "dsseEnvelope"}:
            with extra("in-toto", "signed statements need"):
                from tiebreak.attestation.envelope import parse_envelope
            envelope = parse_envelope(plain)
            plain = parse_json(envelope.payload)
        if not isinstance(plain, dict):
            raise ValueError("is no object")
        if "_type" in plain or envelope is not None:
            from tiebreak.attestation.statement import parse_statement

            statement = parse_statement(plain)
            plain = statement.receipt
            data = canonical_json(plain).encode()
        kind = plain.get("format")
        if isinstance(kind, str) and kind in RECEIPT_FORMATS:
            found: AnyReceipt = parse_receipt(data, path)
        elif kind == "tiebreak evaluation":
            from tiebreak.evaluation.evaluation_receipt import parse_evaluation_receipt

            found = parse_evaluation_receipt(data)
        else:
            from roundlog.generation import parse_generation_receipt

            found = parse_generation_receipt(data)
        if isinstance(found, Receipt) and statement is not None and not statement.lists_files:
            statement.check_job(found.spec.run_id, found.final_state_root)
        elif statement is not None:
            statement.check_model()
    except ReceiptError:
        raise
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:300]
        raise CommandError(f"{path} is no receipt that could be checked (it {reason}): {_AGAIN}") from error
    return ReceiptFile(found, statement, envelope)


def read_receipt_of_run(path: Path) -> Receipt:
    """Read the receipt of a run in a file. Raises CommandError, ReceiptError."""
    from roundlog.training import Receipt

    found = read_receipt_file(path).receipt
    if not isinstance(found, Receipt):
        raise CommandError(f"{path} is the receipt of a text: give that of a run.")
    return found


def signed_receipt(receipt: AnyReceipt, account: LocalAccount) -> AnyReceipt:
    """Return the receipt with the signature of an account (EIP-191)."""
    from tiebreak.transactions.keys import sign_text

    signer = bytes.fromhex(account.address[2:])
    return receipt.signed(signer, sign_text(account, receipt.by(signer).signed_text()))


def wrong_signature(receipt: AnyReceipt, wanted: str | None) -> str | None:
    """Return the fault of the signature, in one clause; None if it is right, or if none is there and none was asked
    for. wanted: the account that has to have signed, with its checksum."""
    from tiebreak.transactions.keys import signer_of

    if receipt.signer is None or receipt.signature is None:
        return None if wanted is None else f"nobody has signed it, and {wanted} should have"
    if signer_of(receipt.signed_text(), receipt.signature) != receipt.signer:
        form = "65 bytes with a low s and a v of 27 or 28"
        return f"its signature is not that of {account_text(receipt.signer)} over what it says, in {form}"
    if wanted is not None and bytes.fromhex(wanted[2:]) != receipt.signer:
        return f"{account_text(receipt.signer)} has signed it, and not {wanted}"
    return None


def signer_text(receipt: AnyReceipt) -> str:
    """Return the signer of a receipt whose signature is right, in one clause."""
    return "nobody has signed it" if receipt.signer is None else f"signed by {account_text(receipt.signer)}"


def account_text(account: bytes) -> str:
    """Return the address of an account of 20 bytes, with its checksum."""
    from eth_utils.address import to_checksum_address

    return to_checksum_address(account)
