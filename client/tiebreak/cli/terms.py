"""Options of those who put bonds on jobs: whose verdicts they trust, and which terms they accept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tiebreak.cli import network, quantities

if TYPE_CHECKING:
    from tiebreak.roles.policy import Policy

_PANEL = "What a bond is put on"

TrustReferee = Annotated[
    list[str] | None,
    typer.Option(
        "--trust-referee",
        metavar="ADDRESS",
        help="Put bonds only on jobs with this referee, whose word can take them; repeatable.",
        rich_help_panel=_PANEL,
    ),
]
LeastClock = Annotated[
    int | None,
    typer.Option(
        "--least-clock",
        parser=quantities.seconds,
        metavar="TIME",
        help="Leave jobs alone whose games give less time to move, e.g. 10m. [default: what the job's trees, the "
        "chain's blocks and an interval executed here take]",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
LeastReward = Annotated[
    int,
    typer.Option(
        "--least-reward",
        parser=quantities.wei,
        metavar="AMOUNT",
        help="Leave jobs alone that pay less, e.g. 0.05ether.",
        rich_help_panel=_PANEL,
    ),
]
LeastBond = Annotated[
    int,
    typer.Option(
        "--least-bond",
        parser=quantities.wei,
        metavar="AMOUNT",
        help="Leave jobs alone whose trainers have less at stake, of which whoever catches one gets a part.",
        rich_help_panel=_PANEL,
    ),
]
AllowLargeRows = Annotated[
    bool,
    typer.Option(
        "--allow-large-rows",
        help="Accept jobs with rows of data above 64 KiB, which no transaction can carry. What was loaded of them is "
        "the referee's to decide: its silence costs the trainer its reward, its lie costs a bond.",
        rich_help_panel=_PANEL,
    ),
]
DEFAULT_FLOOR = "0.001ether"
MostBond = Annotated[
    int | None,
    typer.Option(
        "--most-bond",
        parser=quantities.wei,
        metavar="AMOUNT",
        help="Leave jobs alone that ask for a higher bond, e.g. 0.5ether.",
        rich_help_panel=_PANEL,
    ),
]


def policy(
    trusted: list[str] | None,
    least_clock: int | None,
    most_bond: int | None,
    least_reward: int = 0,
    least_bond: int = 0,
    large_rows: bool = False,
) -> Policy:
    """What the options say. Raises CommandError for a referee that is no address."""
    from tiebreak.roles.policy import Policy

    referees = frozenset(network.address(text, "the trusted referee") for text in trusted or [])
    return Policy(
        referees=referees or None,
        least_clock=least_clock,
        most_bond=most_bond,
        least_reward=least_reward,
        least_bond=least_bond,
        large_rows=large_rows,
    )
