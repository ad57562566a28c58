"""In which order long work is done."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st
from tiebreak.roles.background_jobs import Duty, order

ETHER = 10**18


def in_time(duties: dict[str, Duty], done: list[str]) -> set[str]:
    """Duties that are done by their deadlines, if they are worked on in this order from instant 0 on."""
    clock, found = 0.0, set()
    for key in done:
        clock += duties[key].seconds
        if clock <= duties[key].deadline:
            found.add(key)
    return found


def test_the_earliest_deadline_goes_first_where_all_can_be_in_time() -> None:
    duties = {
        "late": Duty(deadline=1000, stake=9 * ETHER, seconds=100),
        "soon": Duty(deadline=200, stake=1, seconds=100),
        "now": Duty(deadline=100, stake=1, seconds=100),
    }
    assert order(duties, 0) == ["now", "soon", "late"]


def test_a_junk_job_that_was_taken_first_gives_way_to_the_real_one() -> None:
    duties = {
        "junk": Duty(deadline=5_000, stake=1, seconds=4_000),
        "real": Duty(deadline=6_000, stake=ETHER, seconds=3_000),
    }
    assert order(duties, 0) == ["real", "junk"]


def test_many_junk_jobs_do_not_crowd_the_real_one_out() -> None:
    duties = {f"junk {i}": Duty(deadline=100 + i, stake=10, seconds=50) for i in range(200)}
    duties["real"] = Duty(deadline=400, stake=ETHER, seconds=300)
    found = in_time(duties, order(duties, 0))
    assert "real" in found


def test_what_a_bond_hangs_on_goes_before_what_only_brings_something() -> None:
    duties = {
        "bonded": Duty(deadline=100, stake=1, seconds=80, bonded=True),
        "reward": Duty(deadline=90, stake=100 * ETHER, seconds=80),
    }
    assert order(duties, 0)[0] == "bonded"


def test_work_of_unknown_length_never_makes_others_late() -> None:
    duties = {
        "unknown": Duty(deadline=50, stake=1),
        "known": Duty(deadline=60, stake=5, seconds=60),
    }
    assert order(duties, 0) == ["unknown", "known"]


DUTIES = st.dictionaries(
    st.sampled_from("abcdef"),
    st.builds(
        Duty, deadline=st.integers(0, 30), stake=st.integers(0, 9), seconds=st.integers(0, 12), bonded=st.booleans()
    ),
)


@settings(deadline=None)  # a machine may be busy
@given(DUTIES)
def test_everything_is_ordered_once_and_all_are_in_time_where_that_is_possible(duties: dict[str, Duty]) -> None:
    found = order(duties, 0)
    assert sorted(found) == sorted(duties)
    best = max((len(in_time(duties, list(way))) for way in permutations(duties)), default=0)
    if best == len(duties):
        assert len(in_time(duties, found)) == best
