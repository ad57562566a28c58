"""Files of receipts, of runs and of texts: as they are, or in a statement of in-toto (docs/receipt.md)."""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebreak.cli.failures import CommandError
from tiebreak.cli.option_groups import option

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount
    from roundlog.generation import GenerationReceipt
    from roundlog.training import Receipt

    from tiebreak.evaluation.evaluation_receipt import EvaluationReceipt

    AnyReceipt = Receipt | GenerationReceipt | EvaluationReceipt

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:tiebreak:receipt:v1"
"""Type of predicates that are receipts, of any kind: `format` says which."""

_AGAIN = "get the receipt again from its author."


class ReceiptForm(enum.StrEnum):
    """Forms of a receipt's file."""

    JSON = "json"
    IN_TOTO = "in-toto"


FORM = option(
    "The receipt alone, or as the predicate of a Statement of in-toto, which other tools carry.",
    ReceiptForm.JSON,
    name="--format",
)


def read_receipt_file(path: Path) -> AnyReceipt:
    """Read the receipt in a file that is not trusted, checked against itself, but for its signature. Raises
    CommandError, ReceiptError."""
    from roundlog.json_text import canonical_json, parse_json
    from roundlog.storage import open_regular
    from roundlog.training import MAX_RECEIPT_BYTES, RECEIPT_FORMATS, ReceiptError, parse_receipt

    try:
        with open_regular(path) as file:
            data = file.read(MAX_RECEIPT_BYTES + 1)
    except OSError as error:
        raise CommandError(f"{path} cannot be read ({error.strerror}): check the path.") from error
    try:
        if len(data) > MAX_RECEIPT_BYTES:
            raise ValueError(f"has more than {MAX_RECEIPT_BYTES} bytes")
        plain, subject = parse_json(data), None
        if not isinstance(plain, dict):
            raise ValueError("is no object")
        if "_type" in plain:
            plain, subject = _predicate(plain)
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
        if subject is not None and subject != _subject(found):
            raise ValueError("has another subject than its receipt")
    except ReceiptError:
        raise
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:300]
        raise CommandError(f"{path} is no receipt that could be checked (it {reason}): {_AGAIN}") from error
    return found


def read_receipt_of_run(path: Path) -> Receipt:
    """Read the receipt of a run in a file. Raises CommandError, ReceiptError."""
    from roundlog.training import Receipt

    found = read_receipt_file(path)
    if not isinstance(found, Receipt):
        raise CommandError(f"{path} is the receipt of a text: give that of a run.")
    return found


def digest_of_run(path: Path) -> bytes:
    """Return the digest of a run's receipt in a file. Raises CommandError, ReceiptError."""
    return read_receipt_of_run(path).digest


def write_receipt_file(path: Path, receipt: AnyReceipt, form: ReceiptForm) -> None:
    """Write a receipt, whole or not at all. Raises ReceiptError if it is too large, OSError."""
    from roundlog.storage import replace_file
    from roundlog.training import Receipt

    if form is ReceiptForm.IN_TOTO:
        text = json.dumps(statement_of(receipt), indent=1) + "\n"
    elif isinstance(receipt, Receipt):
        receipt.write(path)
        return
    else:
        text = receipt.to_json()
    with replace_file(path) as file:
        file.write(text.encode())


def statement_of(receipt: AnyReceipt) -> dict[str, Any]:
    """Return the Statement of in-toto, version 1, that has a receipt as its predicate."""
    return {
        "_type": STATEMENT_TYPE,
        "subject": _subject(receipt),
        "predicateType": PREDICATE_TYPE,
        "predicate": receipt.plain(),
    }


def signed_receipt(receipt: AnyReceipt, account: LocalAccount) -> AnyReceipt:
    """Return the receipt with the signature of an account (EIP-191)."""
    from roundlog.training import Receipt

    from tiebreak.transactions.keys import sign_text

    signer = bytes.fromhex(account.address[2:])
    named = receipt.by(signer)
    signature = sign_text(account, named.signed_text())
    return named.signed(signature) if isinstance(named, Receipt) else named.signed(signer, signature)


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


def _subject(receipt: AnyReceipt) -> list[dict[str, Any]]:
    from roundlog.training import Receipt

    if not isinstance(receipt, Receipt):
        tokens = receipt.plain().get("tokens_hash")
        name, digest = ("evaluation", receipt.digest.hex()) if tokens is None else ("tokens", tokens[2:])
        return [{"name": name, "digest": {"sha256": digest}}]
    # A state root is no SHA-256 of a file, and has a name of its own so that nobody takes it for one.
    return [
        {"name": "spec.json", "digest": {"sha256": receipt.spec.run_id.hex()}},
        {"name": "final state", "digest": {"tiebreakStateRoot": receipt.final_state_root.hex()}},
    ]


def _predicate(statement: dict[str, Any]) -> tuple[dict[str, Any], object]:
    """Return (predicate, subject) of a stranger's statement. Fields that it has beside them are passed over, as in-toto
    asks."""
    for name, wanted in (("_type", STATEMENT_TYPE), ("predicateType", PREDICATE_TYPE)):
        if statement.get(name) != wanted:
            raise ValueError(f"has a {name} that is not {wanted}")
    predicate = statement.get("predicate")
    if not isinstance(predicate, dict):
        raise ValueError("has a predicate that is no object")
    return predicate, statement.get("subject", [])
