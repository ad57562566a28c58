"""Keys from keystores and from the environment, and what happens to bad ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from eth_account import Account
from tiebreak.rpc.chain_errors import AccountError
from tiebreak.transactions.keys import (
    KEY_VARIABLE,
    PASSWORD_VARIABLE,
    account_from_key,
    create_keystore,
    devnet_account,
    load_account,
    read_keystore,
)

KEY = "4c0883a69102937d6231471b5dbb6204fe5129617082792ae468d01a3f362318"
ADDRESS = "0x2c7536E3605D9C16a7a3D7b1898e529396a65c23"


@pytest.fixture
def keystore(tmp_path: Path) -> Path:
    # Scrypt's usual parameters take a second; the content is what counts here.
    path = tmp_path / "keystore.json"
    path.write_text(json.dumps(Account.encrypt(KEY, "secret", iterations=2)))
    path.chmod(0o600)
    return path


def test_a_keystore_that_we_wrote_opens_again_and_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "new.json"
    account = create_keystore(path, "secret")
    assert path.stat().st_mode & 0o777 == 0o600
    assert account.key.hex() not in path.read_text()
    assert read_keystore(path, "secret").address == account.address
    with pytest.raises(AccountError, match="exists"):
        create_keystore(path, "secret")
    assert read_keystore(path, "secret").address == account.address


def test_a_keystore_is_written_for_its_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        create_keystore(tmp_path / "k", "secret", devnet_account(0))
    finally:
        os.umask(before)
    assert (tmp_path / "k").stat().st_mode & 0o777 == 0o600


def test_a_keystore_that_a_full_disk_has_cut_off_does_not_stand_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(AccountError, match="No space left"):
            create_keystore(tmp_path / "k", "secret", devnet_account(0))
    create_keystore(tmp_path / "k", "secret", devnet_account(0))
    assert read_keystore(tmp_path / "k", "secret").address == devnet_account(0).address


def test_an_empty_password_and_a_bad_place_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AccountError, match="password"):
        create_keystore(tmp_path / "k", "")
    (tmp_path / "file").write_text("")
    with pytest.raises(AccountError, match="another place"):
        create_keystore(tmp_path / "file" / "k", "secret")


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


def test_no_account_at_all_says_how_to_give_one() -> None:
    with pytest.raises(AccountError, match=KEY_VARIABLE):
        load_account(None, environment={})


def test_a_keystore_that_others_can_read_is_refused(keystore: Path) -> None:
    keystore.chmod(0o644)
    with pytest.raises(AccountError, match="chmod 600"):
        read_keystore(keystore, "secret")


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "7", "null", "{}", '{"crypto": 1}', '{"crypto": {"kdfparams": {}}}', "[" * 50_000, "x" * 70_000,
        '{"version": 3, "crypto": {"kdf": "scrypt", "kdfparams": {"n": 1099511627776, "r": 8, "p": 1}}}',
        '{"version": 3, "crypto": {"kdf": "pbkdf2", "kdfparams": {"c": 99999999999}}}',
        '{"version": 3, "crypto": {"kdf": "scrypt", "kdfparams": {"n": "8", "r": 8, "p": 1}}}',
    ],
)  # fmt: skip
def test_a_malformed_or_ruinous_keystore_is_refused_at_once(tmp_path: Path, text: str) -> None:
    path = tmp_path / "k"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(AccountError, match="not a keystore"):
        read_keystore(path, "secret")


def test_every_part_of_a_keystore_is_needed(keystore: Path) -> None:
    whole = json.loads(keystore.read_text())
    for name in whole["crypto"].keys() - {"cipher"}:  # version 3 knows only one cipher, and eth-keyfile does not ask
        broken = {**whole, "crypto": {key: value for key, value in whole["crypto"].items() if key != name}}
        keystore.write_text(json.dumps(broken))
        with pytest.raises(AccountError, match="not a keystore"):
            read_keystore(keystore, "secret")


def test_a_keystore_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccountError, match="absent"):
        read_keystore(tmp_path / "absent", "secret")
    with pytest.raises(AccountError, match=str(tmp_path)):
        read_keystore(tmp_path, "secret")


def test_the_development_accounts_are_the_public_ones() -> None:
    assert devnet_account(0).address == "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
    assert devnet_account(1).address == "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
