"""Strangers' words on a screen: none moves a cursor, turns a line around, is markup, or pushes the rest away."""

from __future__ import annotations

import io
import unicodedata
from dataclasses import replace

import pytest
from rich.console import Console
from rich.text import Text
from tiebreak.cli.summary_text import job_text
from tiebreak.contract.abi import _typed
from tiebreak.contract.structs import JobView
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.rpc.node import ChainNode

from tests.client.disputes import Cast, Run

NAMES = {
    "control sequences": "\x1b[2J\x1b[1;1H\x1b]0;owned\x07\x9b31m\r\n\x08",
    "bidirectional controls": "\u202e\u2066\u2067\u200f\u061c0001",
    "nothing to see": "\u200b\u2060\ufeff\U000e0041\u00ad",
    "wide characters": "漢字" * 40 + "\U0001f469\u200d\U0001f469",
    "markup": "[red]x[/red] [link=http://evil]y[/link]",
    "a line without end": "x" * 100_000,
    "many lines": "x\u2028\u2029\n\v\f" * 10_000,
    "surrogates": "\ud800\udfff",
}


@pytest.fixture(scope="module")
def cast() -> Cast:
    cast = Cast.on(ChainNode(EmbeddedChain()))
    cast.commit(cast.post(), Run.of(33))
    return cast


def drawn(text: Text) -> str:
    file = io.StringIO()
    console = Console(file=file, width=80, height=40, force_terminal=False, color_system=None)
    console.print(text, soft_wrap=True)
    return file.getvalue()


def is_plain(text: str) -> bool:
    return all(one == "\n" or (one.isprintable() and unicodedata.category(one)[0] != "C") for one in text)


def job_with(cast: Cast, cid: str) -> JobView:
    """The one job, which and whose claim have these addresses of content."""
    job = cast.customer.job(1)
    return replace(job, job_cid=cid, claim=replace(job.claim, log_cid=cid, model_cid=cid))


@pytest.mark.parametrize("name", NAMES)
def test_no_name_on_the_screen_controls_the_terminal(cast: Cast, name: str) -> None:
    cid = NAMES[name][:128]  # as much as the contract, and the reader of what a node shows, let through
    shown = drawn(job_text(1, job_with(cast, cid), cast.customer.node.now()))
    assert is_plain(shown) and "challenge by" in shown and "CLAIMED" in shown
    assert len(shown.splitlines()) < 40
    assert all(len(line) <= 80 or "x" * 128 in line or "漢" in line for line in shown.splitlines())
    if name == "markup":
        assert "[red]x[/red]" in shown


@pytest.mark.parametrize("text", [b"x" * 10**7, b"\x1b[2J\xff" * 1000, b"bafy"], ids=["long", "wild", "short"])
def test_a_text_that_a_node_makes_longer_than_the_contract_allows_is_cut(text: bytes) -> None:
    """A node that lies may show ten megabytes where the contract keeps 128 bytes."""
    read = _typed({"type": "string", "name": "cid"}, text)
    assert len(read) == min(128, len(text)) and is_plain(read.replace("\ufffd", "?"))
