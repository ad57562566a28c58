"""The end of a game in words: what was disputed, what both sides said, what the contract computed."""

from __future__ import annotations

from dataclasses import dataclass

from tiebreak.contract import events
from tiebreak.contract.enums import Finding, Level, Outcome, Reason, Side
from tiebreak.contract.structs import GameView, JobView
from tiebreak.dashboard import showing
from tiebreak.dashboard.game_history import GameHistory
from tiebreak.dashboard.path import half_of, left_to_search, step_of
from tiebreak.dashboard.showing import Names, Number
from tiebreak.dashboard.words import ENDS, FINDINGS, OUTCOMES, name_words


@dataclass(frozen=True, slots=True)
class Verdict:
    """The disputed number, as far as known. `claimed`: the trainer's; `computed`: the contract's, or the referee's."""

    subject: str
    """operator 255, matmul of gpt.py line 54, element 2,411"""
    sentence: str
    claimed: Number | None = None
    computed: Number | None = None
    by: str = "the contract computed"


def subject(game: GameView, job: JobView, names: Names) -> str:
    """The thing that a game is about, as exactly as it is known."""
    step = step_of(game, job)
    if step is None:
        return ""
    parts = [f"step {step:,}"]
    if len(game.levels) > 2 and not (len(game.levels) == 3 and left_to_search(game)):
        level = game.levels[Level.OPERATOR]
        half = half_of(level.leaf_count, job.spec.training.state_count)
        if level.index >= half:
            slot = level.index - half
            parts.append(f"state slot {slot:,}" + (f", {names.slot(slot)}" if names.slot(slot) else ""))
        else:
            parts.append(f"operator {level.index:,}" + (f", {name}" if (name := names.operator(level.index)) else ""))
    if game.disputed.known:
        parts.append(f"element {game.disputed.element:,}")
    return ", ".join(parts)


def verdict(game: GameView, job: JobView, history: GameHistory, names: Names) -> Verdict | None:
    """Finding of the contract, or another end of the game; None as long as there is nothing to tell."""
    about, width = subject(game, job, names), game.operator.width
    if (proof := history.last(events.ElementProven)) is not None:
        return _element(game, proof, about, width, history)
    if (proven := history.last(events.SegmentProven)) is not None:
        return _segment(game, proven, about, width)
    if (store := history.last(events.StoreProven)) is not None:
        return _store(game, store, about)
    if game.disputed.known:
        claimed = showing.number(game.disputed.claimed, width)
        ended = _how(game) if game.outcome else "The contract has not computed it yet."
        return Verdict(about, f"The trainer claims {claimed.bits} ({claimed.value}). {ended}", claimed)
    if not game.outcome:
        return None
    return Verdict(about, _how(game))


def _element(game: GameView, proof: events.ElementProven, about: str, width: int, history: GameHistory) -> Verdict:
    if f"element {proof.element:,}" not in about:
        about = f"{about}, element {proof.element:,}"
    claimed = showing.number(proof.claimed, width)
    if proof.finding is Finding.VALUE:
        computed = showing.number(proof.bits, width)
        said = (
            f"The trainer claims {claimed.bits} ({claimed.value}), the contract computed {computed.bits} "
            f"({computed.value})."
        )
        return Verdict(about, said, claimed, computed)
    said = f"The trainer claims {claimed.bits} ({claimed.value}); the contract: {FINDINGS.get(proof.finding, '')}."
    if (answer := history.last(events.Adjudicated)) is not None:
        computed = showing.number(answer.bits, width)
        said += f" The referee says {computed.bits} ({computed.value})."
        return Verdict(about, said, claimed, computed, by="the referee says")
    return Verdict(about, said, claimed)


def _segment(game: GameView, proof: events.SegmentProven, about: str, width: int) -> Verdict:
    claimed = showing.number(game.disputed.claimed, width) if game.disputed.known else None
    wrong = {Outcome.CHALLENGER_WON: "trainer's", Outcome.TRAINER_WON: "challenger's"}.get(game.outcome, "")
    said = (
        f"The element is a sum of {game.operator.segments:,} segments of terms. The contract added up segment "
        f"{proof.segment:,} itself"
    )
    said += f": the {wrong} running result after it is wrong." if wrong else "."
    if claimed is not None:
        said += f" The trainer claims {claimed.bits} ({claimed.value}) for the whole sum."
    return Verdict(about, said, claimed)


def _store(game: GameView, proof: events.StoreProven, about: str) -> Verdict:
    wrong = {Outcome.CHALLENGER_WON: "trainer", Outcome.TRAINER_WON: "challenger"}.get(game.outcome, "")
    kept = showing.short(showing.hexed(proof.payload))
    said = f"State slot {proof.slot:,} has to keep what was computed for it, the tensor with root {kept}"
    return Verdict(about, f"{said}; the {wrong} claims another one." if wrong else f"{said}.")


def _how(game: GameView) -> str:
    if game.reason is Reason.TIMEOUT:
        silent = {Outcome.TRAINER_WON: Side.CHALLENGER, Outcome.CHALLENGER_WON: Side.TRAINER}.get(game.outcome)
        if silent is not None:
            return f"{OUTCOMES[game.outcome]}: the {name_words(silent)}'s clock ran out."
    who = OUTCOMES.get(game.outcome, name_words(game.outcome).capitalize())
    return f"{who} {ENDS.get(game.reason, name_words(game.reason))}."
