"""What a launcher says of the ranks, right or wrong."""

from __future__ import annotations

from typing import NoReturn

import pytest
from roundlog.execution.ranks import Launch, LaunchError

RIGHT = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
BY_TORCHRUN = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "a", "TORCHELASTIC_RESTART_COUNT": "2"}


def test_a_process_without_ranks_is_alone() -> None:
    assert Launch.of({}) is None
    assert Launch.of({**RIGHT, "WORLD_SIZE": "1"}) is None
    assert Launch.of({"RANK": "3"}) is None


def test_the_environment_names_the_ranks() -> None:
    assert Launch.of(RIGHT) == Launch(0, 3, "10.0.0.1", 29500, "tiebreak/none/0", is_host=True)
    assert Launch.of({**RIGHT, "RANK": "2"}) == Launch(2, 3, "10.0.0.1", 29500, "tiebreak/none/0", is_host=False)
    # torchrun holds the store itself, and may start the ranks again in it.
    assert Launch.of({**RIGHT, "LOCAL_RANK": "1"}) == Launch(
        0, 3, "10.0.0.1", 29500, "tiebreak/none/0", is_host=True, local_rank=1
    )
    assert Launch.of(RIGHT | BY_TORCHRUN) == Launch(0, 3, "10.0.0.1", 29500, "tiebreak/a/2", is_host=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WORLD_SIZE", "two"),
        ("WORLD_SIZE", "100000"),
        ("RANK", None),
        ("RANK", "3"),
        ("RANK", "-1"),
        ("RANK", "\u0661"),
        ("LOCAL_RANK", ""),
        ("LOCAL_WORLD_SIZE", "4"),
        ("MASTER_ADDR", None),
        ("MASTER_PORT", "65536"),
    ],
)
def test_what_no_launcher_says_is_refused_by_name(name: str, value: str | None) -> None:
    environment = {**RIGHT, name: value} if value is not None else {k: v for k, v in RIGHT.items() if k != name}
    with pytest.raises(LaunchError, match=f"{name} is .*start the command by torchrun, or alone"):
        Launch.of(environment)


ONE_MACHINE = {"LOCAL_WORLD_SIZE": "3"}
SEVERAL_MACHINES = {"LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("named", "more", "host", "loopback"),
    [
        ("127.0.0.1", {}, "127.0.0.1", "127.0.0.1"),
        ("::1", {}, "::1", "::1"),
        ("localhost", {}, "127.0.0.1", "127.0.0.1"),
        ("10.0.0.1", {}, "10.0.0.1", None),
        ("node0", {}, "node0", None),
        ("localhost.example", {}, "localhost.example", None),
        ("127.0.0.1", SEVERAL_MACHINES, "127.0.0.1", None),
        ("node0", SEVERAL_MACHINES | BY_TORCHRUN, "node0", None),
        ("::1", ONE_MACHINE, "::1", "::1"),
        ("node0", ONE_MACHINE, "127.0.0.1", "127.0.0.1"),
        # The agent's store is where the agent says.
        ("node0", ONE_MACHINE | BY_TORCHRUN, "node0", "127.0.0.1"),
        ("localhost", ONE_MACHINE | BY_TORCHRUN, "localhost", "127.0.0.1"),
    ],
)
def test_only_what_an_environment_says_keeps_ranks_to_the_loopback_interface(
    named: str, more: dict[str, str], host: str, loopback: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resolvers differ: one has the name of its own machine on the loopback interface, and the others have not."""

    def resolve(*asked: object, **more: object) -> NoReturn:
        raise AssertionError("a name was looked up")

    monkeypatch.setattr("socket.getaddrinfo", resolve)
    launch = Launch.of(RIGHT | {"MASTER_ADDR": named} | more)
    assert launch is not None and (launch.host, launch.loopback) == (host, loopback)
