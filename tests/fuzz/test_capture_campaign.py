"""Random training scripts: a sample of `make fuzz-capture`."""

from __future__ import annotations

import pytest
from roundlog.capture.rules import RULES

from tests.fuzz.capture_campaign import Difference, attempt, campaign, short_script
from tests.fuzz.random_trainings import Training, random_training

pytestmark = pytest.mark.slow

SAMPLE = 24


@pytest.mark.filterwarnings("ignore")
def test_no_script_is_captured_as_something_else() -> None:
    counts = campaign(10_000, SAMPLE)
    assert not counts["differs"] and not counts["raises"]
    assert counts["captured"] > SAMPLE // 4 and counts["refused"]


@pytest.mark.filterwarnings("ignore")
def test_no_script_under_autocast_is_captured_as_something_else() -> None:
    counts = campaign(30_000, SAMPLE // 2, short_script)
    assert not counts["differs"] and not counts["raises"]
    assert counts["captured"] > SAMPLE // 8


def plain() -> Training:
    """A script that is captured, and has a GELU in it."""
    numbers = (random_training(seed) for seed in range(1000))
    return next(t for t in numbers if "h = F.gelu" in t.source and attempt(t) == "captured")


def test_the_campaign_would_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a rule that is wrong, and a comparison that sees nothing."""
    training = plain()
    right = RULES["gelu"]
    monkeypatch.setitem(RULES, "gelu", lambda c, *a, **options: c.op("mul", right(c, *a, **options), c.f32(1.01)))
    monkeypatch.setattr("tests.fuzz.capture_campaign.confirm_same", lambda captured: None)
    with pytest.raises(Difference, match=r"the loss of step 0|off after three steps"):
        attempt(training)
