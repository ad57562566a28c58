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


def test_the_earliest_deadline_goes_first_where_all_can_be_in_time() -> None:
    priorities = {
        "late": Priority(deadline=1000, stake=9 * ETHER, seconds=100),
        "soon": Priority(deadline=200, stake=1, seconds=100),
        "now": Priority(deadline=100, stake=1, seconds=100),
    }
    assert order(priorities, 0) == ["now", "soon", "late"]


def test_a_junk_job_that_was_taken_first_gives_way_to_the_real_one() -> None:
    priorities = {
        "junk": Priority(deadline=5_000, stake=1, seconds=4_000),
        "real": Priority(deadline=6_000, stake=ETHER, seconds=3_000),
    }
    assert order(priorities, 0) == ["real", "junk"]


def test_many_junk_jobs_do_not_crowd_the_real_one_out() -> None:
    priorities = {f"junk {i}": Priority(deadline=100 + i, stake=10, seconds=50) for i in range(200)}
    priorities["real"] = Priority(deadline=400, stake=ETHER, seconds=300)
    found = in_time(priorities, order(priorities, 0))
    assert "real" in found


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
