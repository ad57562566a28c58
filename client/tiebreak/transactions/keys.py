"""Keys of accounts: from an encrypted keystore file or an environment variable, never from a command line.

Keystore files are the usual Ethereum ones (Web3 Secret Storage, version 3), readable by their owner only. Signatures
over texts are those of wallets (EIP-191, version 0x45): no transaction can be made of one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from eth_account import Account
from eth_account.messages import encode_defunct
from eth_account.signers.local import LocalAccount
from eth_keyfile.keyfile import normalize_keys
from eth_keys.constants import SECPK1_N
from eth_keys.exceptions import BadSignature
from eth_utils.exceptions import ValidationError
from roundlog.json_text import parse_json
from roundlog.storage import create_file, open_regular

from tiebreak.process_resources import restore_recursion_limit
from tiebreak.rpc.chain_errors import AccountError

restore_recursion_limit()

MNEMONIC = "test test test test test test test test test test test junk"
"""The mnemonic of every public test chain: anvil's and hardhat's accounts are the same ones."""

ACCOUNTS = 10
BALANCE = 10_000 * 10**18
"""Wei that each account starts with."""

KEY_VARIABLE = "TIEBREAK_PRIVATE_KEY"
PASSWORD_VARIABLE = "TIEBREAK_KEYSTORE_PASSWORD"

_MAX_KEYSTORE = 64 * 1024
_MAX_SCRYPT_MEMORY = 1 << 30  # bytes; the usual parameters take 256 MiB
_MAX_SCRYPT_TIMES = 16
_MAX_PBKDF2_ROUNDS = 10_000_000
_ANEW = "export the key from the wallet that wrote it, and make another by `tiebreak account import`."

Prompt = Callable[[str], str]
"""Asks a person for a password, showing the given text."""


def load_account(
    keystore: Path | None, *, environment: Mapping[str, str] = os.environ, prompt: Prompt | None = None
) -> LocalAccount:
    """Return the account of `keystore`, or without one that of the private key in the variable `KEY_VARIABLE`.

    The keystore's password comes from the variable `PASSWORD_VARIABLE`, else from `prompt`. Raises AccountError.
    """
    if keystore is None:
        key = environment.get(KEY_VARIABLE)
        if key is None:
            raise AccountError(f"no account is given: name a keystore file, or put a private key into {KEY_VARIABLE}.")
        return account_from_key(key, f"the variable {KEY_VARIABLE}")
    locked = _read(keystore)  # nobody should type a password for a file that cannot be used
    password = environment.get(PASSWORD_VARIABLE)
    if password is None:
        if prompt is None:
            raise AccountError(
                f"no password for the keystore {keystore}: put it into the variable {PASSWORD_VARIABLE}."
            )
        password = prompt(f"Password of {keystore}")
    return _unlock(keystore, locked, password)


def account_from_key(key: str, source: str) -> LocalAccount:
    """Return the account of a private key of 64 hex digits, with or without 0x. The key never shows in the
    AccountError."""
    digits = key.strip().removeprefix("0x")
    try:
        if len(digits) == 64:
            account: LocalAccount = Account.from_key(bytes.fromhex(digits))
            return account
    except ValueError:  # not hex, or not on the curve
        pass
    raise AccountError(f"{source} does not hold a private key: it has to be 64 hex digits.") from None


def devnet_account(index: int) -> LocalAccount:
    """Return the `index`-th of the funded accounts of every development chain. Its key is public: never fund it
    elsewhere."""
    Account.enable_unaudited_hdwallet_features()
    account: LocalAccount = Account.from_mnemonic(MNEMONIC, account_path=f"m/44'/60'/0'/0/{index}")
    return account


def create_keystore(path: Path, password: str, account: LocalAccount | None = None) -> LocalAccount:
    """Write a keystore for `account`, or for a fresh one, which it returns; the file is for its owner's eyes only.

    An existing file is never replaced. Raises AccountError.
    """
    if not password:
        raise AccountError("an empty password protects nothing: choose another.")
    chosen: LocalAccount = account if account is not None else Account.create()
    text = json.dumps(Account.encrypt(chosen.key, password))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        create_file(path, text.encode())
    except OSError as error:
        raise AccountError(
            f"the keystore {path} cannot be written ({error.strerror}): choose another place."
        ) from error
    return chosen


def read_secret(path: Path, what: str) -> bytes:
    """Return a secret file's bytes. Raises AccountError for one that cannot be read, or that others may read."""
    try:
        with open_regular(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(_MAX_KEYSTORE + 1)
    except OSError as error:
        raise AccountError(f"the {what} {path} cannot be read ({error.strerror}): check the path.") from error
    if mode & 0o077:
        raise AccountError(f"the {what} {path} can be read by others: run chmod 600 on it.")
    return raw


def _read(path: Path) -> dict[str, Any]:
    """Return a keystore, still encrypted, its names in lower case. Raises AccountError for whatever no password can
    cure."""
    raw = read_secret(path, "keystore")
    if len(raw) > _MAX_KEYSTORE:
        raise _malformed(path)
    try:
        # As eth-keyfile reads it, which takes names in any case: what is checked is what is used.
        content: dict[str, Any] = normalize_keys(parse_json(raw))
        _check(path, content, content["crypto"], content["crypto"]["kdfparams"])
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise _malformed(path) from error
    return content


def _check(path: Path, content: dict[str, Any], crypto: dict[str, Any], parameters: dict[str, Any]) -> None:
    """Raise AccountError for a keystore that eth-keyfile would open as another account, since it looks neither at the
    cipher nor at the derived key's length, or at any cost; ValueError and the like for one that lacks something."""
    is_scrypt = crypto["kdf"] == "scrypt"
    forms: dict[str, list[Any]] = {"version": [3], "kdf": ["scrypt", "pbkdf2"], "cipher": ["aes-128-ctr"]}
    forms |= {"dklen": [32]} | ({} if is_scrypt else {"prf": ["hmac-sha256"]})
    places = {"version": content, "kdf": crypto, "cipher": crypto}
    for name, allowed in forms.items():
        if (given := places.get(name, parameters)[name]) not in allowed:
            wanted = " or ".join(map(str, allowed))
            raise AccountError(f"the keystore {path} has the {name} {str(given)[:40]!r}, and not {wanted}: {_ANEW}")
    costs = [parameters[name] for name in (("n", "r", "p") if is_scrypt else ("c",))]
    if any(type(one) is not int or not 0 < one < 1 << 63 for one in costs):
        raise ValueError("has a cost that is no number")
    if is_scrypt:
        n, r, p = costs
        fits = 128 * n * r <= _MAX_SCRYPT_MEMORY and p <= _MAX_SCRYPT_TIMES
        cost = f"{-(-128 * n * r >> 30):,} GiB of memory (scrypt: 128 n r bytes, with n = {n}, r = {r}), p = {p} times"
        most = f"{_MAX_SCRYPT_MEMORY >> 30} GiB, {_MAX_SCRYPT_TIMES} times"
    else:
        fits = costs[0] <= _MAX_PBKDF2_ROUNDS
        cost, most = f"{costs[0]:,} rounds of pbkdf2", f"{_MAX_PBKDF2_ROUNDS:,}"
    if not fits:
        raise AccountError(f"the keystore {path} asks for {cost}, and at most {most} are allowed: {_ANEW}")


def _malformed(path: Path) -> AccountError:
    return AccountError(f"{path} is not a keystore of an Ethereum account: check the path.")


def _unlock(path: Path, content: dict[str, Any], password: str) -> LocalAccount:
    try:
        key = Account.decrypt(content, password)
    except (ValueError, MemoryError, KeyError, TypeError, AttributeError) as error:
        if "MAC mismatch" in str(error):
            raise AccountError(f"the password does not open the keystore {path}: try again.") from error
        # The one way in which scrypt fails with affordable parameters.
        if isinstance(error, MemoryError) or "while running scrypt" in str(error):
            why = f"there is not enough memory to open the keystore {path}: close other programs."
            raise AccountError(why) from error
        raise _malformed(path) from error
    account = account_from_key(key.hex(), f"the keystore {path}")
    said = str(content.get("address", account.address))
    if said.lower().removeprefix("0x") != account.address[2:].lower():
        raise AccountError(
            f"the keystore {path} says that it is of the account {said[:60]!r}, and the key in it is that of "
            f"{account.address}: it was changed; take it from a backup."
        )
    return account


def sign_text(account: LocalAccount, text: str) -> bytes:
    """Return the account's signature over a text: 65 bytes."""
    return bytes(account.sign_message(encode_defunct(text=text)).signature)


def signer_of(text: str, signature: bytes) -> bytes | None:
    """Return the 20-byte address that has made a signature over a text; None if the bytes are no signature in its one
    form, r, s and v: 65 bytes, an s of at most half the group's order (EIP-2), a v of 27 or 28."""
    # The account's key would give others for each: with n - s and the other v, and with the v of a chain.
    if len(signature) != 65 or signature[64] not in (27, 28) or int.from_bytes(signature[32:64]) > SECPK1_N // 2:
        return None
    try:
        address: str = Account.recover_message(encode_defunct(text=text), signature=signature)
    except (BadSignature, ValidationError, ValueError):
        return None
    return bytes.fromhex(address[2:])
