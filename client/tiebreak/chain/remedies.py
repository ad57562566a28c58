"""Remedies for the contract's errors: what a person can do about each."""

from __future__ import annotations

from collections.abc import Mapping

_SPEC = "create the job again with a value that fits"
_STATE = "look at it with `tiebreak job show`, and do what its state allows"
_OTHER = "the chain may have been reorganised: look at the job again before you pay"
_ACCOUNT = "use the account that the job or the game names"

REMEDIES: Mapping[str, str] = {
    "FieldOutOfRange": "choose a value in that range",
    "IntervalDoesNotDivideSteps": _SPEC,
    "ChunkSizeSplitsElements": _SPEC,
    "CidLengthOutOfRange": "give the content address of the files, as the content store prints it",
    "NoAdjudicator": "name an adjudicator that is on this chain",
    "WrongPayment": "send exactly the expected amount",
    "WrongJobStatus": _STATE,
    "WrongPhase": _STATE,
    "WrongLevel": _STATE,
    "WrongSpec": _OTHER,
    "AnotherRootWasCommitted": _OTHER,
    "NotTheTrainer": _ACCOUNT,
    "NotTheParty": _ACCOUNT,
    "NotTheReferee": _ACCOUNT,
    "TooLate": "nothing can be done after the deadline",
    "ClockRanOut": "nothing can be done after the deadline",
    "TooEarly": "wait until the deadline is over",
    "LiveGames": "wait until its games are over",
    "AlreadyAttested": "nothing is left to do",
    "AuditsAreBlind": "seal the claim or the audit first, and open it in its window",
    "AuditsAreOpen": "commit or attest: this job has no seals",
    "WrongSeal": "open with the root, the addresses and the salt that were sealed, from the account that sealed them",
    "WrongAuditStatus": _STATE,
    "AlreadyAppealed": "play the appeal that the account has",
    "NothingToCollect": "collect when the job is over, or when the time to open an audit is",
    "NoGameToStart": "wait until the audits are open, or until another game is over",
    "AlreadyChallenged": "play the game that the account has with this root",
    "AlreadyOpened": "wait for the other side",
    "RootIsTheTrainers": "challenge only with another root than the trainer's",
    "NothingToWithdraw": "withdraw when a verdict has credited the account",
    "BondNotHeld": "look with `tiebreak status` for what the account may withdraw",
    "WithdrawalFailed": "withdraw with an account that accepts payments",
    "NestedBatch": "make the calls of the inner batch one by one",
}
"""Error -> remedy, for the errors that a person can meet. All others come from a move or a proof."""

OF_A_MOVE = "read the game again: another move may have come first, or the evidence is not this game's"
OF_AN_UNKNOWN_ERROR = "check that the address holds this version's contract"


def remedy(name: str) -> str:
    """The remedy for a contract's error."""
    return OF_AN_UNKNOWN_ERROR if name in ("Error", "Panic", "Unknown") else REMEDIES.get(name, OF_A_MOVE)
