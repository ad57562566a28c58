"""Keys of accounts: from an encrypted keystore file or an environment variable, never from a command line.

Keystore files are the usual Ethereum ones (Web3 Secret Storage, version 3), readable by their owner only. Signatures
over texts are those of wallets (EIP-191, version 0x45): no transaction can be made of one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from eth_account import Account
from eth_account.messages import encode_defunct
from eth_account.signers.local import LocalAccount
from eth_keys.exceptions import BadSignature
from eth_utils.exceptions import ValidationError
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
IMPORT_PASSWORD_VARIABLE = "TIEBREAK_IMPORT_PASSWORD"

_MAX_KEYSTORE = 64 * 1024
_MAX_SCRYPT_MEMORY = 1 << 30  # bytes; the usual parameters take 256 MiB
_MAX_PBKDF2_ROUNDS = 10_000_000

Prompt = Callable[[str], str]
"""Asks a person for a password, showing the given text."""


def load_account(
    keystore: Path | None, *, environment: Mapping[str, str] = os.environ, prompt: Prompt | None = None
) -> LocalAccount:
    """The account of `keystore`, or without one that of the private key in the variable `KEY_VARIABLE`.

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
    """The account of a private key of 64 hex digits, with or without 0x. The key never shows in the AccountError."""
    digits = key.strip().removeprefix("0x")
    try:
        if len(digits) == 64:
            account: LocalAccount = Account.from_key(bytes.fromhex(digits))
            return account
    except ValueError:  # not hex, or not on the curve
        pass
    raise AccountError(f"{source} does not hold a private key: it has to be 64 hex digits.") from None


def devnet_account(index: int) -> LocalAccount:
    """The `index`-th of the funded accounts of every development chain. Its key is public: never fund it elsewhere."""
    Account.enable_unaudited_hdwallet_features()
    account: LocalAccount = Account.from_mnemonic(MNEMONIC, account_path=f"m/44'/60'/0'/0/{index}")
    return account


def create_keystore(path: Path, password: str, account: LocalAccount | None = None) -> LocalAccount:
    """Writes a keystore for `account`, or for a fresh one, which it returns; the file is for its owner's eyes only.

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


def read_keystore(path: Path, password: str) -> LocalAccount:
    """Decrypts a keystore. Raises AccountError: no such file, readable by others, malformed, or a wrong password."""
    return _unlock(path, _read(path), password)


def read_key(path: Path, prompt: Prompt, *, environment: Mapping[str, str] = os.environ) -> LocalAccount:
    """The account of a file with a private key of 64 hex digits, or of a keystore, whose password comes from the
    variable `IMPORT_PASSWORD_VARIABLE`, else from `prompt`. Raises AccountError, in which no key ever shows: no such
    file, readable by others, neither of both, or a wrong password."""
    raw = read_secret(path, "key file")
    if not raw.lstrip().startswith(b"{"):
        return account_from_key(raw.decode("ascii", "replace"), str(path))
    locked = _read(path)
    password = environment.get(IMPORT_PASSWORD_VARIABLE)
    return _unlock(path, locked, prompt(f"Password of {path}") if password is None else password)


def read_secret(path: Path, what: str) -> bytes:
    """A secret file's bytes. Raises AccountError for one that cannot be read, or that others may read."""
    try:
        with open_regular(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(_MAX_KEYSTORE + 1)
    except OSError as error:
        raise AccountError(f"the {what} {path} cannot be read ({error.strerror}): check the path.") from error
    if mode & 0o077:
        raise AccountError(f"the {what} {path} can be read by others: run chmod 600 on it.")
    return raw


def _read(path: Path) -> dict[str, object]:
    """A keystore, still encrypted. Raises AccountError for whatever no password can cure."""
    raw = read_secret(path, "keystore")
    if len(raw) > _MAX_KEYSTORE:
        raise _malformed(path)
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _malformed(path) from error
    if not isinstance(content, dict) or not _is_affordable(content):
        raise _malformed(path)
    return content


def _malformed(path: Path) -> AccountError:
    return AccountError(f"{path} is not a keystore of an Ethereum account: check the path.")


def _no_memory(path: Path) -> AccountError:
    return AccountError(f"there is not enough memory to open the keystore {path}: close other programs.")


def _unlock(path: Path, content: dict[str, object], password: str) -> LocalAccount:
    try:
        key = Account.decrypt(content, password)
    except ValueError as error:
        if "MAC mismatch" in str(error):
            raise AccountError(f"the password does not open the keystore {path}: try again.") from error
        if "while running scrypt" in str(error):  # the one way in which it fails with affordable parameters
            raise _no_memory(path) from error
        raise _malformed(path) from error
    except MemoryError as error:
        raise _no_memory(path) from error
    except (KeyError, TypeError, AttributeError, NotImplementedError) as error:
        raise _malformed(path) from error
    return account_from_key(key.hex(), f"the keystore {path}")


def _is_affordable(keystore: dict[str, object]) -> bool:
    """True if a keystore's key derivation, which a stranger may have chosen, stays within memory and time."""
    crypto = keystore.get("crypto", keystore.get("Crypto"))
    parameters = crypto.get("kdfparams") if isinstance(crypto, dict) else None
    if not isinstance(parameters, dict):
        return False
    cost = {name: parameters.get(name, 1) for name in ("n", "r", "p", "c")}
    numbers = {name: value for name, value in cost.items() if isinstance(value, int) and value > 0}
    return (
        len(numbers) == len(cost)
        and 128 * numbers["n"] * numbers["r"] <= _MAX_SCRYPT_MEMORY
        and numbers["p"] <= 16
        and numbers["c"] <= _MAX_PBKDF2_ROUNDS
    )


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
