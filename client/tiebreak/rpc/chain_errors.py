"""Errors between this program and a chain, one type for each way to fail.

A message is one sentence that names the thing and says what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

_SPEC = "create the job again with a value that fits"
_STATE = "look at it with `tiebreak status JOB`, and do what its state allows"
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


class ChainError(Exception):
    """Base of every error that this package raises on purpose."""


class ChainUnavailable(ChainError):
    """No node answers at the given address, or not in time."""


class WrongChain(ChainError):
    """A node is one of another chain than the nodes beside it."""


class NodesDisagree(ChainError):
    """The nodes of a chain contradict each other, and no majority decides: nothing new is begun."""


class Stopped(ChainError):
    """The process was told to stop while it asked or waited."""


class NotConfirmed(ChainError):
    """A job or claim does not lie deep enough in the chain for a bond, or another one is there."""


class InvalidAnswer(ChainError):
    """A node answered with something that is not what the protocol promises."""


REVERTED = 3
"""Error code that nodes give to a reverted call."""


class RpcRefused(ChainError):
    """A node refused a request. `code` and `reason` are the node's own; `data` is what a reverted call returned."""

    def __init__(self, method: str, code: int, reason: str, data: bytes | None = None) -> None:
        self.method = method
        self.code = code
        self.reason = reason
        self.data = data
        super().__init__(f"the node refused {method} ({reason}): check the request and the node.")

    def as_json(self) -> dict[str, object]:
        """Return the `error` member of a JSON-RPC answer."""
        error: dict[str, object] = {"code": self.code, "message": self.reason}
        return error if self.data is None else error | {"data": "0x" + self.data.hex()}


def remedy(name: str) -> str:
    """Return the remedy for a contract's error."""
    return OF_AN_UNKNOWN_ERROR if name in ("Error", "Panic", "Unknown") else REMEDIES.get(name, OF_A_MOVE)


class ContractError(ChainError):
    """A contract reverted. `name` is its custom error (or Error, Panic, Unknown), `values` the error's arguments."""

    def __init__(self, name: str, values: Mapping[str, object]) -> None:
        self.name = name
        self.values = dict(values)
        shown = ", ".join(f"{key}={_shown(value)}" for key, value in self.values.items())
        super().__init__(f"the contract refused with {name}({shown}): {remedy(name)}.")


class TransactionFailed(ChainError):
    """A transaction was included in a block but reverted there: the state had changed after it was estimated."""

    def __init__(self, transaction: bytes, block: int) -> None:
        self.transaction = transaction
        self.block = block
        super().__init__(f"transaction 0x{transaction.hex()} failed in block {block}: read the state and try again.")


class TransactionPending(ChainError):
    """A transaction was sent but no block took it in time. It may still be included; sending again is harmless."""


class NonceTaken(ChainError):
    """Another process has sent from the same account, where a transaction was to stand, and may have done the same."""


class JournalError(ChainError):
    """The record of what was signed cannot be written, so that nothing with value may be sent."""


class InsufficientFunds(ChainError):
    """The account cannot pay for the transaction."""


class AccountError(ChainError):
    """A key cannot be had: no such keystore, wrong password, malformed key."""


class SignerError(ChainError):
    """An external signer did not sign; nothing was sent, and the next look asks again."""


class SignerUnavailable(SignerError):
    """No signer answers at the given address, or not in time."""


class SignerRefused(SignerError):
    """A signer will not sign this."""


class WrongSignature(SignerError):
    """A signer gave something else than a signature under what it was asked to sign."""


class JournalInUse(AccountError):
    """Another process sends for the same account from the same directory."""


class DevnetError(ChainError):
    """The local chain cannot be started or does not do what was asked of it."""


class DeploymentError(ChainError):
    """The contract's artifact is unusable, or an address does not hold the contract."""


class NoCode(DeploymentError):
    """A node shows no code at an address. It may lag behind, so that this proves nothing."""


def printable(text: str, most: int | None = None) -> str:
    """Return a stranger's text on one line, cut to `most` characters (None: any number), without the control characters
    that could rewrite a terminal."""
    plain = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return plain if most is None or len(plain) <= most else plain[: most - 3] + "..."


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        return printable(f"0x{value.hex()}", 80)
    return printable(value.name if isinstance(value, Enum) else str(value), 80)
