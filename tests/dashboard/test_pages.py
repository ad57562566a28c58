"""Pages as they are answered, without a browser: what they say, what they refuse, and what strangers put into them."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from typing import Any

import pytest
from starlette.testclient import TestClient
from tiebreak.contract.contract_calls import ANY_PLACE, ContractCall
from tiebreak.contract.game import VerificationGame
from tiebreak.dashboard.chain_reader import NEWEST_GAMES, PAGE, ContractPages
from tiebreak.dashboard.site import Site
from tiebreak.dashboard.web import make_app
from tiebreak.devnet.embedded import embedded_node
from tiebreak.rpc.chain_errors import ContractError

from tests.client.disputes import ETHER, JOB_CID, TERMS, Cast, Run

RIGHT, WRONG = Run.of(), Run.of(23)
AUDITED = replace(TERMS, attestations_needed=2, attestation_bond=3 * ETHER // 2, audit_fee=ETHER // 50)


def attest(auditor: VerificationGame, job: int, **cids: str) -> None:
    """Attest to the right claim, with a bond."""
    given = {"spec_hash": auditor.job(job).spec_hash, "checkpoint_root": RIGHT.checkpoints.root}
    cids = {"log_cid": JOB_CID, "model_cid": JOB_CID} | cids
    auditor.send(auditor.paying("attest", job, bond=AUDITED.attestation_bond, last_place=ANY_PLACE, **given, **cids))  # type: ignore[arg-type]


def text(client: TestClient, path: str, status: int = 200) -> str:
    """Text of a page, without its markup."""
    answer = client.get(path, follow_redirects=False)
    assert answer.status_code == status, answer.text
    main = re.sub(r"<[^>]*>", " ", answer.text[answer.text.index("<main") :])
    return " ".join(unescape(main).split())


def seen(site: Site) -> None:
    """Let the site see what has happened."""
    site.head_monitor.look()


def test_an_empty_contract_has_pages(empty: TestClient) -> None:
    assert "There are no jobs yet" in text(empty, "/jobs")
    assert "No account has used this contract" in text(empty, "/accounts")
    assert empty.get("/", follow_redirects=False).headers["location"] == "/jobs"


def test_a_job_is_told_with_its_money_and_its_windows(cast: Cast, site: Site, client: TestClient) -> None:
    job = cast.post()
    seen(site)
    shown = text(client, "/jobs/1")
    for part in ("Waits for a trainer's claim", "reward 3 ETH", "trainer's bond 2 ETH", "to claim it", JOB_CID):
        assert part in shown
    cast.commit(job, RIGHT)
    cast.attest(job, RIGHT.checkpoints.root)
    seen(site)
    shown = text(client, "/jobs/1")
    assert f"checkpoint root 0x{RIGHT.checkpoints.root.hex()}" in shown
    assert f"Attestations 1 {cast.auditor._sender.address}" in shown  # type: ignore[union-attr]
    assert "to challenge it" in shown and "to claim it" not in shown


def test_a_game_is_told_from_the_challenge_to_the_verdict(cast: Cast, site: Site, client: TestClient) -> None:
    job = cast.post()
    cast.commit(job, WRONG)
    game = cast.dispute(job, WRONG, RIGHT)
    seen(site)
    shown = text(client, f"/games/{game}")
    assert "Windows, by the chain's clock none the job is over" in text(client, "/jobs/1")
    for part in ("checkpoint 4", "step 22", "state slot 2", "The challenger won by what the contract computed."):
        assert part in shown
    assert "State slot 2 has to keep what was computed for it" in shown and "the trainer claims another one" in shown
    moves = {event.transaction for event in cast.customer.events(game=game)}
    answer = client.get(f"/games/{game}").text
    assert all(f"0x{move.hex()}" in answer for move in moves)
    gas = sum(cast.customer.node.receipt(move).gas_used for move in moves)  # type: ignore[union-attr]
    assert f"{gas:,} gas in all" in shown


@pytest.mark.slow
def test_accounts_are_told_by_role_with_what_they_have_at_stake(cast: Cast, site: Site, client: TestClient) -> None:
    first, second = cast.post(), cast.post(AUDITED)
    cast.commit(first, WRONG)
    cast.dispute(first, WRONG, RIGHT)
    cast.commit(second, RIGHT)
    attest(cast.referee, second)
    seen(site)
    page = site.accounts(site.head_monitor.snapshot())["page"]
    by_role = {role: one for one in page["accounts"] for role in one.roles}
    assert by_role["trainer"].bonds == TERMS.trainer_bond and by_role["trainer"].roles["trainer"] == 2
    assert by_role["challenger"].bonds == 0
    assert by_role["challenger"].credit == cast.customer.credit_of(by_role["challenger"].address) > 0
    assert by_role["auditor"].bonds == AUDITED.attestation_bond
    assert by_role["customer"].escrowed == TERMS.reward + AUDITED.audit_fee, "the other reward is the customer's again"
    assert page["burnt"] == cast.customer.burnt() > 0
    assert text(client, "/accounts").count("ETH") > 5


# Strangers.

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "../../../../etc/passwd",
    "\u202egnirts\u202c\x00\x1b[31m",
    "\xff\xfe" * 32,
    "a" * 128,
]


@pytest.mark.slow
def test_a_hostile_address_is_text_and_never_a_link(cast: Cast, site: Site, client: TestClient) -> None:
    for cid in HOSTILE:
        cast.customer.send(cast.customer.post_job(cast.spec(), TERMS, cid))
    seen(site)
    assert client.get("/jobs").status_code == 200
    for job, cid in enumerate(HOSTILE, 1):
        answer = client.get(f"/jobs/{job}")
        assert answer.status_code == 200 and "not a content address" in answer.text, cid
        assert "<script>alert" not in answer.text and "<img" not in answer.text
        assert not any(character in answer.text for character in "\x1b\x00\u202e")
        assert not re.search(r'href="(?![/#]|")', answer.text), "a link to somewhere else"
        if "{{" in cid:
            assert "{{ 7 * 7 }}" in unescape(answer.text), "an address is no template"


@pytest.mark.parametrize(
    "path", ["/jobs/0", "/jobs/1e3", "/jobs/" + "9" * 5000, "/static/..%2fweb.py", "/static/base.html", "/etc/passwd"]
)
def test_what_is_not_there_is_not_there(empty: TestClient, path: str) -> None:
    assert "There is no" in text(empty, path, 404)


def test_a_job_or_game_that_is_not_there_is_told_by_its_number(empty: TestClient) -> None:
    assert "There is no job 7 in this contract" in text(empty, "/jobs/7", 404)
    assert "There is no game 999999999999999999 in this contract" in text(empty, "/games/" + "9" * 18, 404)


@pytest.mark.parametrize("page", ["0", "x", "9" * 4000, "%00"])
def test_a_page_that_is_not_there_is_the_nearest(empty: TestClient, page: str) -> None:
    assert "There are no jobs yet" in text(empty, f"/jobs?page={page}")


@pytest.mark.parametrize("method", ["POST", "DELETE", "OPTIONS"])
def test_nothing_can_be_sent(empty: TestClient, method: str) -> None:
    for path in ("/jobs", "/games/1", "/accounts", "/changes", "/static/style.css"):
        answer = empty.request(method, path, content=b"x" * 1000)
        assert answer.status_code == 405 and "GET" in answer.headers["allow"]


def test_a_page_of_another_site_gets_nothing(empty: TestClient) -> None:
    for mode in ("no-cors", "cors"):
        headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": mode}
        assert empty.get("/jobs", headers=headers).status_code == 403
        assert empty.get("/changes", headers=headers).status_code == 403
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert empty.get("/jobs", headers=followed).status_code == 200, "a link in a mail"


@pytest.mark.parametrize("path", ["/jobs", "/nowhere", "/static/live.js"])
def test_every_answer_has_the_headers_that_keep_strangers_out(empty: TestClient, path: str) -> None:
    headers = empty.get(path).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert all(value in ("'self'", "'none'") for value in policy.values()), "nothing inline, nothing from elsewhere"
    assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers


# Bounds.


class Endless:
    """A contract with any number of jobs and games, which counts the views that it is asked for."""

    def __init__(self, contract: VerificationGame, job: int, game: int, count: int) -> None:
        self.node, self.address, self.first_block = contract.node, contract.address, contract.first_block
        self._job, self._game, self._count = replace(contract.job(job), game_count=count), contract.game(game), count
        self.requests: list[int] = []

    def views(self, calls: list[ContractCall], *, block: int | None = None) -> list[Any]:
        self.requests.append(len(calls))
        return [self._answer(call) for call in calls]

    def _answer(self, call: ContractCall) -> Any:
        if call.function in ("jobCount", "gameCount"):
            return self._count
        there = 1 <= int(str(call.arguments[0])) <= self._count
        found: Any = self._job if call.function == "getJob" else self._game
        return found if there else ContractError("WrongJobStatus", {})


@pytest.fixture(scope="module")
def posted() -> tuple[VerificationGame, int, int]:
    """A contract with a job and a game. Read only."""
    cast = Cast.on(embedded_node())
    job = cast.post()
    cast.commit(job, WRONG)
    return cast.customer, job, cast.challenge(job, RIGHT.checkpoints.root)


@pytest.fixture
def endless(posted: tuple[VerificationGame, int, int]) -> Endless:
    return Endless(*posted, 5_000_000)


@pytest.mark.slow_cases("1")
@pytest.mark.parametrize("page", [1, 2, 10**17])
def test_of_millions_of_jobs_a_page_reads_a_few(endless: Endless, page: int) -> None:
    found = ContractPages(endless).jobs(page, 1)  # type: ignore[arg-type]
    assert len(found.jobs) == PAGE and found.pages == 5_000_000 // PAGE
    assert len(endless.requests) <= 2 and sum(endless.requests) <= 2 + PAGE + NEWEST_GAMES
    assert found.jobs[0][0] == 5_000_000 - (found.number - 1) * PAGE


def test_transactions_are_linked_to_the_explorer_that_was_named(posted: tuple[VerificationGame, int, int]) -> None:
    contract, _, game = posted
    for explorer in ("", "https://explorer.example/"):
        site = Site(contract, explorer=explorer)
        site.start()
        shown = TestClient(make_app(site), base_url="http://127.0.0.1").get(f"/games/{game}").text
        site.close()
        links = re.findall(r'href="([a-z]+:[^"]*)"', shown)
        assert bool(links) == bool(explorer)
        assert all(re.fullmatch(r"https://explorer\.example/tx/0x[0-9a-f]{64}", link) for link in links)
