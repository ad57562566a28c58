"""Commands that talk to a chain: posting, looking, withdrawing, and everything that can be missing or wrong."""

from __future__ import annotations

import json
import stat
from functools import partial
from pathlib import Path

import pytest
from eth_account import Account
from tiebreak.devnet.launcher import find_anvil, start_devnet
from tiebreak.transactions.keys import devnet_account

from tests.client.cli.cli_world import Chain, Run, Trained, refused

REFEREE = devnet_account(3).address
REFEREE_ARGUMENTS = ("--reward", "0.5ether", "--referee", REFEREE)


@pytest.fixture
def store(tmp_path: Path) -> tuple[str, ...]:
    return ("--store", str(tmp_path / "store"), "--dir", str(tmp_path / "customer"))


def test_a_job_is_posted_listed_and_shown(run: Run, chain: Chain, trained: Trained, store: tuple[str, ...]) -> None:
    terms = (*REFEREE_ARGUMENTS, "--challenger-bond", "0.2 ether", "--clock", "90m", "--concurrent-games", "8")
    terms += ("--trainer", devnet_account(1).address)
    result = run("job", "create", trained.job, *terms, *store, "--json", env=chain.environment(0))
    assert result.exit_code == 0, result.stderr
    number = json.loads(result.stdout)["job"]
    posted = chain.game.job(number)
    assert posted.terms.reward == posted.terms.trainer_bond == 5 * 10**17
    assert posted.terms.challenger_bond == 2 * 10**17
    assert (posted.terms.clock_allowance, posted.terms.challenge_window) == (90 * 60, 7 * 86400)
    assert posted.terms.concurrent_games == 8
    assert posted.terms.trainer == devnet_account(1).address
    assert posted.spec.referee == REFEREE and posted.customer == devnet_account(0).address

    listed = json.loads(run("job", "list", "--json", env=chain.environment()).stdout)
    mine = next(one for one in listed if one["job"] == number)
    assert mine["job_cid"] == posted.job_cid and mine["reward_wei"] == str(5 * 10**17) and mine["claim"] is None
    shown = run("status", number, env=chain.environment()).stdout
    assert posted.job_cid in shown and "OPEN" in shown and "0.5 ether" in shown


@pytest.mark.slow
def test_a_job_that_needs_audits_is_posted_and_shown(
    run: Run, chain: Chain, trained: Trained, store: tuple[str, ...]
) -> None:
    audits = ("--attestations", "2", "--audit-fee", "0.1ether", "--audit-window", "3d", "--opening-window", "1d")
    result = run("job", "create", trained.job, *REFEREE_ARGUMENTS, *audits, *store, "--json", env=chain.environment(0))
    assert result.exit_code == 0, result.stderr
    number = json.loads(result.stdout)["job"]
    terms = chain.game.job(number).terms
    assert (terms.attestations_needed, terms.audit_fee) == (2, 10**17)
    assert terms.attestation_bond == terms.challenger_bond == 5 * 10**17
    assert (terms.audit_window, terms.opening_window) == (3 * 86400, 86400)
    shown = json.loads(run("status", number, "--json", env=chain.environment()).stdout)
    assert shown["audits"]["fee_wei"] == str(10**17) and shown["audits"]["attestations_needed"] == 2
    text = run("status", number, env=chain.environment()).stdout
    for part in ("audits attestations needed 2", "audits fee 0.1 ether", "audits bond 0.5 ether"):
        assert part in " ".join(text.split())


def test_terms_of_audits_that_do_not_go_together_are_refused_before_anything_is_sent(
    run: Run, chain: Chain, trained: Trained, store: tuple[str, ...]
) -> None:
    before = chain.game.job_count()
    audits = ("--attestations", "1", "--audit-window", "1d", "--opening-window", "7d")
    result = run("job", "create", trained.job, *REFEREE_ARGUMENTS, *audits, *store, env=chain.environment(0))
    refused(result, "make --opening-window shorter")
    assert chain.game.job_count() == before


def test_a_chain_that_does_not_answer_is_named(run: Run, chain: Chain) -> None:
    away = chain.environment(0) | {"TIEBREAK_CHAIN": "http://127.0.0.1:1"}
    refused(run("status", env=away), "http://127.0.0.1:1", "start the node, or check the address")
    refused(run("status", "--chain", "nonsense", env=chain.environment()), "http://127.0.0.1:8545")


def test_a_contract_that_is_none_is_named(run: Run, chain: Chain) -> None:
    env = {"TIEBREAK_CHAIN": chain.url}
    refused(run("status", env=env), "no contract is given", "TIEBREAK_CONTRACT", "devnet")
    refused(run("status", "--contract", devnet_account(0).address, env=env), "shows no code at", "check the address")
    mixed = chain.game.address.swapcase().replace("X", "x", 1)
    if mixed not in (chain.game.address.lower(), chain.game.address.upper()):
        refused(run("status", "--contract", mixed, env=env), "wrong checksum", "copy it again")
    assert run("status", "--contract", chain.game.address.lower(), env=env).exit_code == 0


def test_a_missing_key_is_asked_for(run: Run, chain: Chain, trained: Trained, store: tuple[str, ...]) -> None:
    posted = ("job", "create", trained.job, *REFEREE_ARGUMENTS, *store)
    for words in (("withdraw",), ("trainer", "run", "--job", 1), posted):
        refused(run(*words, env=chain.environment()), "no account is given", "TIEBREAK_PRIVATE_KEY")


def test_an_account_can_be_made_and_shown(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Account, "encrypt", partial(Account.encrypt, iterations=2))  # usual ones take a second each
    file = tmp_path / "keys" / "mine.json"
    env = {"TIEBREAK_KEYSTORE_PASSWORD": "open sesame"}
    made = run("account", "create", file, "--json", env=env)
    assert made.exit_code == 0, made.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    shown = run("account", "show", "--keystore", file, env=env)
    assert shown.stdout.strip() == json.loads(made.stdout)["address"]
    content = file.read_bytes()
    refused(run("account", "create", file, env=env), str(file), "choose another place")
    assert file.read_bytes() == content
    asked = run("account", "create", tmp_path / "b.json", stdin="one\nanother\nsame\nsame\n")
    assert asked.exit_code == 0 and "same" not in asked.output.replace("the same", "")
    assert run("account", "show", "--keystore", tmp_path / "b.json", stdin="same\n").exit_code == 0


KEY = bytes(devnet_account(4).key).hex()


@pytest.mark.slow
def test_a_key_is_imported_from_a_pipe_or_a_file(run: Run, tmp_path: Path) -> None:
    env = {"TIEBREAK_KEYSTORE_PASSWORD": "open sesame"}
    keys = tmp_path / "key.txt"
    keys.write_text(f"0x{KEY}\n")
    keys.chmod(0o600)
    for name, words, stdin in (("a", (), f"{KEY}\n"), ("b", ("--from", keys), "")):
        file = tmp_path / f"{name}.json"
        made = run("account", "import", file, *words, "--json", env=env, stdin=stdin)
        assert made.exit_code == 0, made.stderr
        assert json.loads(made.stdout) == {"address": devnet_account(4).address, "keystore": str(file)}
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run("account", "show", "--keystore", file, env=env).stdout.strip() == devnet_account(4).address
    taken = file.read_bytes()
    refused(run("account", "import", file, env=env, stdin=KEY), str(file), "choose another place")
    assert file.read_bytes() == taken


def test_what_is_no_key_is_not_imported_and_never_shown(run: Run, tmp_path: Path) -> None:
    env = {"TIEBREAK_KEYSTORE_PASSWORD": "open sesame"}
    source, file = tmp_path / "source", tmp_path / "made.json"
    for bad in (KEY[:-1], "0" * 64, "", "\x1b[2J" + KEY):
        said = refused(run("account", "import", file, env=env, stdin=bad), "standard input", "64 hex digits")
        assert not bad or bad not in said
        source.write_text(bad)
        source.chmod(0o600)
        said = refused(run("account", "import", file, "--from", source, env=env), str(source), "64 hex digits")
        assert not bad or bad not in said
    source.write_text(KEY)
    source.chmod(0o644)
    assert KEY not in refused(run("account", "import", file, "--from", source, env=env), "chmod 600")
    refused(run("account", "import", file, "--from", tmp_path / "none", env=env), str(tmp_path / "none"), "check")
    assert not file.exists()


@pytest.mark.parametrize("role", ["trainer", "auditor"])
def test_who_bonds_names_a_job_or_the_referees_they_trust(run: Run, chain: Chain, role: str) -> None:
    said = ("--trust-referee ADDRESS", "--job NUMBER", "may name itself")
    refused(run(role, "run", env=chain.environment(1)), *said, code=2)


@pytest.mark.slow
def test_several_nodes_are_given_by_option_or_variable(run: Run, chain: Chain) -> None:
    same = chain.url.replace("127.0.0.1", "localhost")
    contract = ("--contract", chain.game.address)
    one = run("status", "--chain", chain.url, *contract, "--json")
    assert one.exit_code == 0, one.output
    for words, env, agreement in (
        (["--chain", chain.url, "--chain", same], {}, "agree"),
        ([], {"TIEBREAK_CHAIN": f"{chain.url} {same}"}, "agree"),
        (["--chain", chain.url, "--chain", "http://127.0.0.1:1"], {}, "no usable answer from the chain at http://127"),
    ):
        several = run("status", *words, *contract, "--json", env=env)
        assert several.exit_code == 0, several.output
        shown = json.loads(several.stdout)
        assert shown.pop("nodes").startswith(agreement)
        assert shown == json.loads(one.stdout)


def test_several_nodes_that_cannot_be_meant_are_refused(run: Run, chain: Chain) -> None:
    env = {"TIEBREAK_CONTRACT": chain.game.address}
    refused(run("status", "--chain", chain.url, "--chain", chain.url, env=env), "named twice", "name each once")
    with start_devnet(kind="embedded") as other:
        said = refused(run("status", "--chain", chain.url, "--chain", other.url, env=env), other.url, "of one chain")
        assert "is a node of another chain" in said
    away = ("--chain", "http://127.0.0.1:1", "--chain", "http://127.0.0.1:2")
    refused(run("status", *away, env=env), "none of the nodes http://127.0.0.1:1 and http://127.0.0.1:2 answers")


def test_a_contract_is_deployed_with_a_signers_account(run: Run) -> None:
    """Anvil is both signer and chain."""
    if find_anvil() is None:
        pytest.skip("anvil is not installed: run npm ci")
    owner = devnet_account(4).address
    with start_devnet(kind="anvil") as devnet:
        env = {"TIEBREAK_CHAIN": devnet.url, "TIEBREAK_SIGNER": devnet.url}
        refused(run("deploy", env=env), "accounts: name one with --signer-account")
        done = run("deploy", "--signer-account", owner, "--json", env=env)
        assert done.exit_code == 0, done.output
        contract = json.loads(done.stdout)["contract"]
        env |= {"TIEBREAK_SIGNER_ACCOUNT": owner, "TIEBREAK_CONTRACT": contract}
        refused(run("withdraw", env=env), "owes nothing", owner)
