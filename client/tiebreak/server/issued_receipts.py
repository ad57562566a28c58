"""Receipts that a server has given, in a folder that survives a kill: each by its digest, and, by the name of the
answer, which receipt is its own and what was signed of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundlog.generation import GenerationReceipt
from roundlog.json_text import canonical_json, parse_json
from roundlog.storage import replace_file

_DIGEST = re.compile("(?:0x)?([0-9a-f]{64})")
_ANSWER = re.compile("(?:chat)?cmpl-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class TextSigner:
    """An account that signs texts. address: 20 bytes. shown: as EIP-55 writes it. sign: the EIP-191 signature of a
    text, 65 bytes."""

    address: bytes
    shown: str
    sign: Callable[[str], bytes]


class IssuedReceipts:
    """A folder with receipts. Nothing of them is kept in memory."""

    def __init__(self, folder: Path, signer: TextSigner | None = None) -> None:
        """Makes the folder, if it is not there. Raises OSError."""
        self._receipts, self._answers = folder / "receipts", folder / "answers"
        for one in (self._receipts, self._answers):
            one.mkdir(parents=True, exist_ok=True)
        self.signer = signer

    def issue(self, answer: str, receipt: GenerationReceipt) -> bytes:
        """Writes the receipt of an answer, signed if there is a signer, and returns its digest. It is on the disk when
        this returns. receipt: unsigned, with the hashes of request and response. Raises OSError."""
        signature: dict[str, str] | None = None
        if self.signer is not None:
            named = receipt.by(self.signer.address)
            receipt = named.signed(self.signer.address, self.signer.sign(named.signed_text()))
            signature = self._signature(receipt, self.signer)
        digest = receipt.digest
        with replace_file(self._receipts / f"{digest.hex()}.json") as file:
            file.write(receipt.to_json().encode())
        # The receipt is there first: a name is never told of one that is not.
        with replace_file(self._answers / f"{answer}.json") as file:
            file.write(canonical_json({"receipt": digest.hex(), "signature": signature}).encode())
        return digest

    def receipt(self, name: str) -> bytes | None:
        """Canonical JSON of a receipt, by its digest (64 hex digits, 0x before them or not) or its answer's name; None
        if there is none."""
        found = _DIGEST.fullmatch(name)
        answer = None if found else self._answer(name)
        digest = found[1] if found else answer["receipt"] if answer else None
        return _read(self._receipts / f"{digest}.json") if digest is not None else None

    def signature(self, answer: str) -> dict[str, str] | None:
        """The signature over an answer's model, request and response; None if there is none."""
        found = self._answer(answer)
        return found["signature"] if found else None

    def _answer(self, name: str) -> dict[str, Any] | None:
        data = _read(self._answers / f"{name}.json") if _ANSWER.fullmatch(name) else None
        return None if data is None else parse_json(data)

    def _signature(self, receipt: GenerationReceipt, signer: TextSigner) -> dict[str, str]:
        """The object that NEAR AI's and Phala's servers give, over the same text."""
        assert receipt.request_sha256 is not None and receipt.response_sha256 is not None
        text = f"{receipt.model.name}:{receipt.request_sha256.hex()}:{receipt.response_sha256.hex()}"
        return {
            "text": text,
            "signature": "0x" + signer.sign(text).hex(),
            "signing_address": signer.shown,
            "signing_algo": "ecdsa",
        }


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
