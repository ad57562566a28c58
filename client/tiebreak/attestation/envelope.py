"""Signed envelopes (DSSE) of statements, by `securesystemslib`: signatures of an account (EIP-191) and of a P-256 key
over the same bytes (docs/receipt.md)."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import CryptoSigner, Signature, SSlibKey

from tiebreak.transactions.keys import read_secret, sign_text, signer_of

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount

PAYLOAD_TYPE = "application/vnd.in-toto+json"
BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
MAX_SIGNATURES = 16
_ACCOUNT = re.compile("0x[0-9a-f]{40}")


class SigningKeyError(ValueError):
    """Raised for a key's file that cannot be used. The message is one sentence with a remedy."""


def read_signing_key(path: Path) -> CryptoSigner:
    """Return the P-256 key in a PEM file. Raises SigningKeyError, AccountError."""
    try:
        key = load_pem_private_key(read_secret(path, "signing key"), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SigningKeyError(f"{path} has no private key in PEM without a password: give one of P-256.") from error
    if not isinstance(key, EllipticCurvePrivateKey) or not isinstance(key.curve, SECP256R1):
        raise SigningKeyError(
            f"{path} has a key that is none of P-256: make one by `openssl ecparam -name prime256v1 -genkey -noout`."
        )
    return CryptoSigner(key)


def read_public_key(path: Path) -> SSlibKey:
    """Return the public key in a PEM file. Raises SigningKeyError."""
    try:
        return SSlibKey.from_crypto(load_pem_public_key(path.read_bytes()))
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SigningKeyError(f"{path} has no public key in PEM that could be used: check the path.") from error


def sealed(payload: str, account: LocalAccount | None, key: CryptoSigner | None) -> Envelope:
    """Return the envelope of a statement, signed by those that are given. The key's signature is the first: package
    `model-signing` reads no other."""
    envelope = Envelope(payload.encode(), PAYLOAD_TYPE, {})
    if key is not None:
        envelope.sign(key)
    if account is not None:
        name = account.address.lower()
        envelope.signatures[name] = Signature(name, sign_text(account, envelope.pae().decode()).hex())
    return envelope


def bundle_of(envelope: Envelope, key: CryptoSigner) -> dict[str, Any]:
    """Return a bundle of Sigstore with an envelope, as package `model-signing` reads it."""
    hint = sha256(key.public_key.keyval["public"].encode()).hexdigest()
    material = {"publicKey": {"hint": hint}, "tlogEntries": []}
    return {"mediaType": BUNDLE_TYPE, "verificationMaterial": material, "dsseEnvelope": envelope.to_dict()}


def parse_envelope(plain: dict[str, Any]) -> Envelope:
    """Return a stranger's envelope, or that of a bundle. Raises ValueError, whose words go on a sentence that names the
    file. Signatures are not checked."""
    try:
        envelope = Envelope.from_dict(plain.get("dsseEnvelope", plain))
        names = [*envelope.signatures]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"is no envelope (DSSE) that could be read: {ascii(error)[:80]}") from None
    if envelope.payload_type != PAYLOAD_TYPE:
        raise ValueError(f"is an envelope of the payload type {ascii(envelope.payload_type)[:60]}, not {PAYLOAD_TYPE}")
    if len(names) > MAX_SIGNATURES or not all(isinstance(name, str) for name in names):
        raise ValueError(f"is an envelope with more than {MAX_SIGNATURES} signatures, or with a keyid that is no text")
    return envelope


def other_keys(envelope: Envelope) -> list[str]:
    """Return the names of the keys, other than accounts, that are said to have signed an envelope."""
    return [ascii(name)[1:-1][:80] for name in envelope.signatures if not _ACCOUNT.fullmatch(name)]


def wrong_envelope(envelope: Envelope, signer: bytes | None, public_key: SSlibKey | None) -> str | None:
    """Return the fault of an envelope's signatures, in one clause; None if there is none.

    signer: the account that its statement names; it alone of all accounts signs, and it has to. public_key: one that
    has to have signed, and besides the account no other."""
    named = {name: one for name, one in envelope.signatures.items() if _ACCOUNT.fullmatch(name)}
    wanted = set() if signer is None else {f"0x{signer.hex()}"}
    if named.keys() != wanted:
        has, should = (" and ".join(sorted(names)) or "no account" for names in (named.keys(), wanted))
        return f"its envelope is signed by {has}, and its statement names {should}"
    text = envelope.pae().decode(errors="replace")
    for name, one in named.items():
        if signer_of(text, bytes.fromhex(one.signature)) != signer:
            form = "65 bytes with a low s and a v of 27 or 28"
            return f"the signature of {name} is not that of this account over its envelope, in {form}"
    if public_key is None:
        return None
    if (others := other_keys(envelope)) != [public_key.keyid]:
        return f"its envelope is signed by the keys {', '.join(others) or 'none'}, and not by {public_key.keyid} alone"
    try:
        envelope.verify([public_key], 1)
    except VerificationError:
        return f"the signature of {public_key.keyid} is not that of this key over its envelope"
    return None
