"""Whatever goes wrong, each intention is carried out exactly once."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from tiebreak.rpc.chain_errors import ChainError, NonceTaken
from tiebreak.rpc.node import MAX_REORGANISATION, ChainNode
from tiebreak.transactions.keys import ACCOUNTS
from tiebreak.transactions.sender import Sender
from tiebreak.transactions.signer import Sent

from tests.client.simulated_chain import FakeAccount, FaultyLine, Killed, SimulatedChain

TO = FakeAccount().address
assert ACCOUNTS


def sender_on(chain: SimulatedChain, line: object, directory: Path | None, confirmations: int = 0) -> Sender:
    return Sender(
        ChainNode(line, confirmations=confirmations),  # type: ignore[arg-type]
        FakeAccount(),  # type: ignore[arg-type]
        directory=directory,
        clock=chain.clock,
        sleep=chain.sleep,
    )


def story(
    seed: int, directory: Path, *, faults: float, kills: float, reorganisations: float, strangers: float, spikes: float
) -> Counter[str]:
    """Carries out some intentions in a hostile world, and counts the effects of each."""
    dice = random.Random(seed)
    chain = SimulatedChain(seed)
    line = FaultyLine(chain, seed + 1, faults, kills=kills)
    chain.strict_fees = dice.random() < 0.5
    confirmations = 3 if strangers and reorganisations else dice.choice([0, 0, 2])

    def weather() -> None:
        if dice.random() < reorganisations and len(chain.blocks) > 5:
            # Confirmed blocks stay, as they have to for anybody who relies on them.
            chain.reorganise(dice.randrange(1, 3), lose=dice.choice([0.0, 0.5]))
        if dice.random() < strangers:
            key = FakeAccount().address, chain.nonce_of(FakeAccount().address)
            if key not in chain.pool or dice.random() < 0.3:
                chain.pool[key] = {
                    **{"from": key[0], "nonce": key[1], "data": "foreign", "hash": dice.randbytes(32)},
                    **{"maxFeePerGas": 10**13, "maxPriorityFeePerGas": 10**10},
                }
        chain.base_fee = dice.choice([10**9, 10**10, 10**11]) if dice.random() < spikes else chain.base_fee

    chain.on_sleep = weather
    purposes = [f"{index:02x}" for index in range(8)]
    todo = list(purposes)
    sender = sender_on(chain, line, directory, confirmations)
    sent: dict[str, Sent] = {}
    for _ in range(4000):
        if not todo:
            break
        try:
            purpose = dice.choice(todo)
            if dice.random() < 0.5:
                sent[purpose] = sender.submit(TO, bytes.fromhex(purpose), value=1, purpose=purpose)
                sender.poll()
                if not sent[purpose].done:
                    chain.sleep(dice.choice([0.5, 5.0, 12.0]))
                    continue
            sender.send(TO, bytes.fromhex(purpose), value=1, purpose=purpose)
            todo.remove(purpose)
        except ChainError:
            chain.sleep(dice.choice([0.5, 5.0]))
        except Killed:
            sender.close()  # as the kernel does
            sender = sender_on(chain, line, directory, confirmations)
    assert not todo, "the sender does not get anywhere"
    # The weather clears up.
    line.rate = line.kills = 0.0
    chain.on_sleep = lambda: None
    chain.base_fee = 10**9
    for _ in range(MAX_REORGANISATION // 4):
        chain.sleep(12)
        sender.poll()
    sender.close()
    return Counter(one for one in chain.effects() if one != "foreign")


WEATHERS = {
    "lost answers": dict(faults=0.3, kills=0.0, reorganisations=0.0, strangers=0.0, spikes=0.0),
    "kills": dict(faults=0.1, kills=0.05, reorganisations=0.0, strangers=0.0, spikes=0.0),
    "reorganisations": dict(faults=0.1, kills=0.02, reorganisations=0.1, strangers=0.0, spikes=0.0),
    "another process": dict(faults=0.1, kills=0.02, reorganisations=0.0, strangers=0.1, spikes=0.0),
    "fees": dict(faults=0.1, kills=0.02, reorganisations=0.02, strangers=0.0, spikes=0.2),
    "everything": dict(faults=0.15, kills=0.01, reorganisations=0.03, strangers=0.05, spikes=0.1),
}


@pytest.mark.parametrize("weather", WEATHERS)
def test_every_intention_is_carried_out_exactly_once(weather: str, tmp_path: Path) -> None:
    for seed in range(12):
        found = story(seed, tmp_path / str(seed), **WEATHERS[weather])
        assert found == Counter(f"{index:02x}" for index in range(8)), f"seed {seed}"


@pytest.mark.parametrize("value", [0, 1], ids=["a move", "a payment"])
def test_two_processes_with_one_key_pay_once(value: int, tmp_path: Path) -> None:
    """A move the contract takes once anyhow, so it goes out again; a payment only after another look at the chain."""
    chain = SimulatedChain(5)
    senders = [sender_on(chain, FaultyLine(chain, seed, 0.0), tmp_path / str(seed)) for seed in range(2)]
    for sender in senders:
        sender.poll()  # both have seen the same nonce
    sent = [
        sender.submit(TO, b"\xaa", value=value, purpose="a bond", gas=50_000 + n) for n, sender in enumerate(senders)
    ]
    for _ in range(6):
        chain.sleep(12)
        for sender in senders:
            sender.poll()
    assert chain.effects() == ["aa"] * (1 if value else 2)
    errors = [type(one.error) for one in sent if one.error is not None]
    assert errors == ([NonceTaken] if value else [])
    assert sum(one.receipt is not None for one in sent) == (1 if value else 2)
