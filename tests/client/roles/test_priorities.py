"""In which order long work is done."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st
from tiebreak.roles.background_jobs import Priority, order

ETHER = 10**18


def in_time(priorities: dict[str, Priority], done: list[str]) -> set[str]:
    """Jobs that are done by their deadlines, if they are worked on in this order from instant 0 on."""
    clock, found = 0.0, set()
    for key in done:
        clock += priorities[key].seconds
        if clock <= priorities[key].deadline:
            found.add(key)
    return found


def test_what_a_bond_hangs_on_goes_before_what_only_brings_something() -> None:
    priorities = {
        "bonded": Priority(deadline=100, stake=1, seconds=80, bonded=True),
        "reward": Priority(deadline=90, stake=100 * ETHER, seconds=80),
    }
    assert order(priorities, 0)[0] == "bonded"


def test_work_of_unknown_length_never_makes_others_late() -> None:
    priorities = {
        "unknown": Priority(deadline=50, stake=1),
        "known": Priority(deadline=60, stake=5, seconds=60),
    }
    assert order(priorities, 0) == ["unknown", "known"]


PRIORITIES = st.dictionaries(
    st.sampled_from("abcdef"),
    st.builds(
        Priority, deadline=st.integers(0, 30), stake=st.integers(0, 9), seconds=st.integers(0, 12), bonded=st.booleans()
    ),
)


@given(PRIORITIES)
def test_everything_is_ordered_once_and_all_are_in_time_where_that_is_possible(priorities: dict[str, Priority]) -> None:
    found = order(priorities, 0)
    assert sorted(found) == sorted(priorities)
    best = max((len(in_time(priorities, list(way))) for way in permutations(priorities)), default=0)
    if best == len(priorities):
        assert len(in_time(priorities, found)) == best
