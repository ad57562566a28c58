"""Words for the contract's names. A field or status without an entry is shown by its own name, spelled out, so that a
newer contract only looks less well."""

from __future__ import annotations

from enum import Enum

from roundlog.spec import POLICY_NAMES

from tiebreak.contract.enums import Finding, Level, Outcome, Phase, Reason, Side

FIELDS = {
    "challenge_window": "window for challenges",
    "clock_allowance": "clock of each side",
    "referee_allowance": "clock of the referee",
    "concurrent_games": "games at a time",
    "commit_window": "window for the claim",
    "trainer_bond": "trainer's bond",
    "challenger_bond": "challenger's bond",
    "trainer": "who may train",
    "audit_fee": "fee for audits",
    "attestation_bond": "bond of an attestation",
    "attestations_needed": "attestations needed",
    "audit_window": "window for sealed audits",
    "opening_window": "window for opening seals",
    "interval": "steps between checkpoints",
    "operator_count": "operators of a step",
    "state_count": "tensors of the state",
    "data_rows": "rows of data",
    "rounding_bits": "bits kept by rounding",
    "rounding_policy": "rounding",
    "log_guard": "guard of the log",
    "log_version": "version of the log",
    "chunk_size": "bytes of a chunk",
}

STATUSES = {
    "OPEN": "Waits for a trainer's claim",
    "SEALED": "A trainer has sealed a claim; auditors may seal their audits",
    "CLAIMED": "A trainer has claimed a result, which may be challenged",
    "APPEALABLE": "A game ended against the claim; auditors that attested to it may appeal",
    "FINAL": "The claim stands, and the trainer is paid",
    "REJECTED": "A game ended against the claim; the reward is the customer's again",
    "EXPIRED": "Nobody claimed it in time; the reward is the customer's again",
    "LAPSED": "Too few auditors attested to the claim; those who did are paid, and everybody has back what it paid in",
}
"""Statuses of a job in a clause, by their names."""

WINDOWS = {
    "commit_deadline": "claim it",
    "challenge_deadline": "challenge it",
    "audit_deadline": "seal an audit",
    "opening_deadline": "open the sealed claim",
    "audit_opening_deadline": "open sealed audits",
    "appeal_deadline": "appeal",
}
"""Actions that are possible until a deadline, by the name of its field."""

EVENTS = {
    "Appealed": "an auditor appeals, and defends the claim",
    "VerdictAppealable": "the auditors that attested may appeal",
    "VerdictUpheld": "the verdict is upheld",
    "VerdictOverturned": "the verdict is overturned",
}
"""Events without numbers to tell, by their names."""

SETTLED = {"NONE", "FINAL", "REJECTED", "EXPIRED", "LAPSED"}
"""Names of the statuses in which a job holds no reward and no trainer's bond any more."""

TONES = {"FINAL": "good", "REJECTED": "bad", "EXPIRED": "quiet", "LAPSED": "quiet", "OPEN": "quiet"}
"""The tone in which a status is shown, by its name; one without an entry is under way."""

LEVELS: dict[Level, tuple[str, str]] = {
    Level.CHECKPOINT: ("checkpoint", "Checkpoints of the run"),
    Level.STEP: ("step", "Steps of that interval"),
    Level.OPERATOR: ("operator", "Operators of that step"),
    Level.CHUNK: ("chunk", "Chunks of its output"),
    Level.PARTIAL: ("segment", "Segments of one sum"),
}
"""A leaf of a level in one word, and what all its leaves are."""

DUE: dict[tuple[Phase, Level | None], str] = {
    (Phase.BISECTION, None): "open one node of its tree",
    (Phase.OPENING, Level.CHECKPOINT): "open its root over the steps of this interval",
    (Phase.OPENING, Level.STEP): "open its root over the operators of this step",
    (Phase.OPENING, Level.OPERATOR): "open the disputed operator",
    (Phase.OPENING, Level.PARTIAL): "open its running results of the sum",
    (Phase.POSTING, None): "show the disputed chunk",
    (Phase.PROVING, Level.OPERATOR): "prove what the store keeps",
    (Phase.PROVING, Level.CHUNK): "name one number and prove it",
    (Phase.PROVING, Level.PARTIAL): "prove one segment of the sum",
    (Phase.REFEREE, None): "say which bits are right",
}
"""The move that is due, by phase and level (None: any)."""

ENDS = {
    Reason.PROOF: "by what the contract computed",
    Reason.VERDICT: "by the referee's verdict",
    Reason.TIMEOUT: "because a clock ran out",
    Reason.PADDING: "because the trees first differ in the padding, where only one value is right",
    Reason.CLAIM_REJECTED: "because the claim was rejected in another game",
}

OUTCOMES = {
    Outcome.TRAINER_WON: "The trainer won",
    Outcome.CHALLENGER_WON: "The challenger won",
    Outcome.BOTH_LOST: "Both sides lost",
    Outcome.UNDECIDED: "Nobody won: the referee fell silent, and the bonds return",
    Outcome.VOID: "Void",
}

FINDINGS = {
    Finding.STOPS: "an honest run stops here, so that a claim of any number is wrong",
    Finding.UNDECIDED: "it cannot tell (the rounding is beyond its precision), so the referee does",
}

SIDES = {Side.TRAINER: "trainer", Side.CHALLENGER: "challenger"}

POLICIES = [f"{name}: {what} decides" for name, what in zip(POLICY_NAMES, ("the exact value", "the log"), strict=True)]


def field_words(name: str) -> str:
    """The name of a record's field for people."""
    return FIELDS.get(name, name.replace("_", " "))


def name_words(value: Enum) -> str:
    """The name of an enum's value for people: `CHALLENGER_WON` is "challenger won"."""
    return value.name.lower().replace("_", " ")


def status_words(status: Enum) -> str:
    """A job's status in a clause."""
    return STATUSES.get(status.name, name_words(status).capitalize())


def tone(status: Enum) -> str:
    """Colour of a status: good, bad, quiet or busy. The word beside it always says the same."""
    return TONES.get(status.name, "busy")


def is_settled(status: Enum) -> bool:
    """Whether a job of this status is over. One that this version does not know is not."""
    return status.name in SETTLED


def due_words(phase: Phase, level: Level) -> str:
    """The move that is due, to follow "has to"; "move" for a phase that this version does not know."""
    return DUE.get((phase, level)) or DUE.get((phase, None)) or "move"
