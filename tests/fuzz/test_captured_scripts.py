"""Random training scripts: a sample of `make fuzz-capture`."""

from __future__ import annotations

from collections import Counter

import pytest
from roundlog.capture.rules import RULES

from tests.chaos.machine import play
from tests.fuzz.captured_scripts import Difference, Scripts, attempt
from tests.fuzz.random_trainings import Training, random_training

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore")
def test_no_script_is_captured_as_something_else() -> None:
    counts: Counter[str] = Counter()
    play(Scripts, 2, hear=lambda played, _: counts.update(played.counts))
    assert counts["captured"] > 10 and counts["refused"]


def plain() -> Training:
    """A script that is captured, and has a GELU in it."""
    numbers = (random_training(seed) for seed in range(1000))
    return next(t for t in numbers if "h = F.gelu" in t.source and attempt(t) == "captured")


def test_the_campaign_would_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a rule that is wrong, and a comparison that sees nothing."""
    training = plain()
    right = RULES["gelu"]
    monkeypatch.setitem(RULES, "gelu", lambda c, *a, **options: c.op("mul", right(c, *a, **options), c.f32(1.01)))
    monkeypatch.setattr("tests.fuzz.captured_scripts.confirm_same", lambda captured: None)
    with pytest.raises(Difference, match=r"the loss of step 0|off after three steps"):
        attempt(training)
