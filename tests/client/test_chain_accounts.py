"""Keys from keystores and from the environment, and what happens to bad ones."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from Crypto.Cipher import AES
from eth_account import Account
from eth_account.signers.local import LocalAccount
from eth_utils.crypto import keccak
from tiebreak.rpc.chain_errors import AccountError
from tiebreak.transactions.keys import (
    KEY_VARIABLE,
    PASSWORD_VARIABLE,
    account_from_key,
    create_keystore,
    devnet_account,
    load_account,
)

KEY = "4c0883a69102937d6231471b5dbb6204fe5129617082792ae468d01a3f362318"
ADDRESS = "0x2c7536E3605D9C16a7a3D7b1898e529396a65c23"


def read_keystore(path: Path, password: str) -> LocalAccount:
    return load_account(path, environment={PASSWORD_VARIABLE: password})


@pytest.fixture(autouse=True)
def quick_scrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keystores with two rounds of scrypt: the usual ones take a second each."""
    monkeypatch.setattr(Account, "encrypt", partial(Account.encrypt, iterations=2))


@pytest.fixture
def keystore(tmp_path: Path) -> Path:
    path = tmp_path / "keystore.json"
    path.write_text(json.dumps(Account.encrypt(KEY, "secret")))
    path.chmod(0o600)
    return path


def test_a_keystore_that_we_wrote_opens_again_and_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "new.json"
    account = create_keystore(path, "secret")
    assert path.stat().st_mode & 0o777 == 0o600
    assert account.key.hex() not in path.read_text()
    with pytest.raises(AccountError, match="exists"):
        create_keystore(path, "secret")
    assert read_keystore(path, "secret").address == account.address


def test_a_full_disk_leaves_no_half_keystore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(AccountError, match="No space left"):
            create_keystore(tmp_path / "k", "secret", devnet_account(0))
    create_keystore(tmp_path / "k", "secret", devnet_account(0))
    assert read_keystore(tmp_path / "k", "secret").address == devnet_account(0).address


def test_the_password_comes_from_the_environment_or_from_the_person(keystore: Path) -> None:
    assert load_account(keystore, environment={PASSWORD_VARIABLE: "secret"}).address == ADDRESS
    assert load_account(keystore, environment={}, prompt=lambda text: "secret").address == ADDRESS
    with pytest.raises(AccountError, match=PASSWORD_VARIABLE):
        load_account(keystore, environment={})
    with pytest.raises(AccountError, match="does not open") as caught:
        load_account(keystore, environment={PASSWORD_VARIABLE: "wrong"})
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("key", [KEY, "0x" + KEY, f"  0x{KEY}\n"])
def test_a_key_comes_from_the_environment(key: str) -> None:
    assert load_account(None, environment={KEY_VARIABLE: key}).address == ADDRESS


@pytest.mark.parametrize(
    "key", ["", "0x", KEY[:-1], KEY + "00", "z" * 64, "0" * 64, "f" * 64, "é" * 64, "0x0x" + KEY[4:]]
)
def test_a_malformed_key_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(AccountError) as caught:
        account_from_key(key, "the variable")
    assert len(key) < 10 or key[:10] not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_keystore_that_others_can_read_is_refused(keystore: Path) -> None:
    keystore.chmod(0o644)
    with pytest.raises(AccountError, match="chmod 600"):
        read_keystore(keystore, "secret")


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "7", "null", "{}", '{"crypto": 1}', '{"crypto": {"kdfparams": {}}}', "[" * 50_000, "x" * 70_000,
        '{"version": 3, "version": 3}', '{"version": 3, "crypto": {"kdf": "scrypt", "kdfparams": {}}}',
        '{"version": 3, "crypto": {"kdf": "scrypt", "kdfparams": {"n": "8", "r": 8, "p": 1}}}',
    ],
)  # fmt: skip
def test_a_malformed_keystore_is_refused_at_once(tmp_path: Path, text: str) -> None:
    path = tmp_path / "k"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(AccountError, match="not a keystore"):
        read_keystore(path, "secret")


def by_cbc(keystore: dict[str, Any]) -> None:
    """Encrypts the key by another cipher, truly, so that the password's check (MAC) is right."""
    crypto, kdf = keystore["crypto"], keystore["crypto"]["kdfparams"]
    key = hashlib.scrypt(b"secret", salt=bytes.fromhex(kdf["salt"]), n=kdf["n"], r=kdf["r"], p=kdf["p"], dklen=32)
    text = AES.new(key[:16], AES.MODE_CBC, bytes.fromhex(crypto["cipherparams"]["iv"])).encrypt(bytes.fromhex(KEY))
    crypto |= {"cipher": "aes-128-cbc", "ciphertext": text.hex(), "mac": keccak(key[16:] + text).hex()}


def with_any_password(keystore: dict[str, Any]) -> None:
    """Leaves no part of the derived key for the password's check."""
    crypto = keystore["crypto"]
    crypto["kdfparams"]["dklen"] = 16
    crypto["mac"] = keccak(bytes.fromhex(crypto["ciphertext"])).hex()


def derived(**other: object) -> Callable[[dict[str, Any]], object]:
    change = {"kdfparams": {"n": 2, "r": 8, "p": 1, "c": 1, "dklen": 32, "prf": "hmac-sha256", "salt": "00"} | other}
    return lambda keystore: keystore["crypto"].update(change, kdf="pbkdf2" if {*other} & {"c", "prf"} else "scrypt")


BENT: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "cipher": (by_cbc, "the cipher 'aes-128-cbc', and not aes-128-ctr: export the key"),
    "address": (lambda one: one.update(address="ab" * 20), f"of the account '{'ab' * 20}', .* is that of {ADDRESS}"),
    "address of nobody": (lambda one: one.update(address=None), f"the account 'None', .* is that of {ADDRESS}"),
    "iv": (lambda one: one["crypto"]["cipherparams"].update(iv="00" * 16), "it was changed; take it from a backup"),
    "any password": (with_any_password, "the dklen '16', and not 32"),
    "memory": (derived(n=1 << 30), r"1,024 GiB of memory \(scrypt: 128 n r bytes, with n = 1073741824, r = 8\)"),
    "times": (derived(p=17), "p = 17 times, and at most 1 GiB, 16 times are allowed: export the key"),
    "rounds": (derived(c=99999999999), "99,999,999,999 rounds of pbkdf2, and at most 10,000,000 are allowed"),
    "length": (derived(dklen=1 << 31), "the dklen '2147483648'"),
    "hash": (derived(prf="sha256"), "the prf 'sha256', and not hmac-sha256"),
    "kdf": (lambda one: one["crypto"].update(kdf="bcrypt"), "the kdf 'bcrypt', and not scrypt or pbkdf2"),
    "a validator's": (lambda one: one.update(version=4), "the version '4', and not 3"),
    "hidden cost": (
        lambda one: one.update(CRYPTO=one["crypto"] | {"kdfparams": one["crypto"]["kdfparams"] | {"n": 1 << 40}}),
        "1,048,576 GiB of memory",
    ),
}


@pytest.mark.parametrize("name", BENT)
def test_no_keystore_opens_as_another_account_or_at_any_cost(keystore: Path, name: str) -> None:
    bend, said = BENT[name]
    plain = json.loads(keystore.read_text())
    bend(plain)
    keystore.write_text(json.dumps(plain))
    with pytest.raises(AccountError, match=said):
        read_keystore(keystore, "secret")


def test_an_address_may_have_any_form_or_be_absent_and_a_key_be_derived_in_both_ways(keystore: Path) -> None:
    plain = json.loads(keystore.read_text())
    rounds = json.loads(json.dumps(Account.encrypt(KEY, "secret", kdf="pbkdf2")))
    for said in ({"address": ADDRESS}, {"address": ADDRESS[2:].upper()}, {}, rounds):
        keystore.write_text(json.dumps({name: plain[name] for name in ("version", "crypto")} | said))
        assert read_keystore(keystore, "secret").address == ADDRESS
