"""Signatures over texts (EIP-191, version 0x45), as wallets make them. No transaction can be made of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eth_account import Account
from eth_account.messages import encode_defunct
from eth_keys.exceptions import BadSignature
from eth_utils.exceptions import ValidationError

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount


def sign_text(account: LocalAccount, text: str) -> bytes:
    """The account's signature over a text: 65 bytes."""
    return bytes(account.sign_message(encode_defunct(text=text)).signature)


def signer_of(text: str, signature: bytes) -> bytes | None:
    """The 20-byte address that has made a signature of 65 bytes over a text; None if the bytes are no signature."""
    try:
        address: str = Account.recover_message(encode_defunct(text=text), signature=signature)
    except (BadSignature, ValidationError, ValueError):
        return None
    return bytes.fromhex(address[2:])
