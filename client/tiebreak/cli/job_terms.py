"""Options about a job's terms: those that a customer posts, and those that trainers and auditors accept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tiebreak import quantities
from tiebreak.cli import network
from tiebreak.cli.failures import CommandError
from tiebreak.cli.option_groups import option

if TYPE_CHECKING:
    from eth_typing import ChecksumAddress

    from tiebreak.contract.structs import Terms
    from tiebreak.roles.policy import Policy

DEFAULT_FLOOR = "0.001ether"


def _amount(text: str, default: str | None = None) -> Any:
    return option(text, default, "AMOUNT", parser=quantities.wei)


def _time(text: str, default: str | None = None) -> Any:
    return option(text, default, "TIME", parser=quantities.seconds)


@dataclass(frozen=True, kw_only=True)
class PostedTerms:
    """Terms of a job that is to be posted; none of them count without a reward."""

    panel: ClassVar = "Posting it on the chain"
    reward: int | None = _amount("Post the job, for this reward.")
    referee: str | None = option("Account that decides what the contract cannot.", metavar="ADDRESS")
    trainer_bond: int | None = _amount("Bond that a wrong trainer loses (default: reward).")
    challenger_bond: int | None = _amount("Bond that a wrong challenger loses (default: the trainer's bond).")
    trainer: str | None = option("The only one who may train it (default: anyone).", metavar="ADDRESS")
    commit_window: int = _time("For trainers to claim it.", "7d")
    challenge_window: int = _time("For auditors to challenge the claim.", "7d")
    clock: int = _time("For each side's moves in one game.", "1d")
    referee_clock: int = _time("For one verdict.", "1d")
    concurrent_games: int = option("Games played at a time; others wait.", 16, "N", min=1, max=1024)

    attestations: int = option(
        "Auditors that have to put a bond on the claim, and serve the model, before it is paid.", 0, "N", min=0, max=32
    )
    audit_fee: int | None = _amount("Paid in equal parts to the first auditors that attest, --attestations of them.")
    attestation_bond: int | None = _amount(
        "Bond that an auditor loses for attesting to a wrong claim (default: the challenger's bond)."
    )
    audit_window: int | None = _time(
        "Blind audits: for auditors to seal theirs, after the trainer has sealed its claim."
    )
    opening_window: int | None = _time("Blind audits: for the trainer to open its claim, and then for the auditors.")

    def check(self) -> None:
        """Refuse terms without a reward, a reward without a referee, and terms of audits that do not go together.
        Raises CommandError."""
        of_audits = (self.audit_fee, self.attestation_bond, self.audit_window, self.opening_window)
        if self.reward is None and (
            self.referee or self.trainer or self.trainer_bond or self.challenger_bond or self.attestations
        ):
            raise CommandError("these are terms of a posted job, but there is no --reward to post it with: add one.")
        if not self.attestations and any(of_audits):
            raise CommandError("these are terms of audits, but nobody has to attest: ask for some with --attestations.")
        if (self.audit_window is None) != (self.opening_window is None):
            raise CommandError("blind audits have two windows: give both --audit-window and --opening-window.")
        terms = None if self.reward is None else self.record(self.reward)
        if terms is not None and 2 * terms.audit_fee > terms.trainer_bond:
            raise CommandError(
                "half of the trainer's bond has to make good the audit fee: make --trainer-bond at least twice "
                "--audit-fee."
            )
        if terms is not None and self.opening_window is not None and terms.opening_window >= terms.challenge_window:
            raise CommandError(
                "audits have to be open before the window for challenges closes: make --opening-window shorter than "
                "--challenge-window."
            )
        if terms is not None and self.opening_window is not None and terms.attestation_bond != terms.challenger_bond:
            raise CommandError(
                "a sealed audit may turn out to be a challenge: leave --attestation-bond away, or make it the "
                "challenger's bond."
            )
        if self.reward is not None and self.referee is None:
            raise CommandError("a posted job needs someone who decides disputes: name an account with --referee.")
        self.addresses()

    def addresses(self) -> tuple[ChecksumAddress | None, ChecksumAddress | None]:
        """Return the referee, and the only trainer. Raises CommandError for what is no address."""
        return (
            network.address(self.referee, "the referee") if self.referee is not None else None,
            network.address(self.trainer, "the trainer") if self.trainer is not None else None,
        )

    def record(self, reward: int) -> Terms:
        """Return the terms as the contract takes them."""
        from tiebreak.contract.structs import ANYONE, Terms

        bond = reward if self.trainer_bond is None else self.trainer_bond
        challengers = bond if self.challenger_bond is None else self.challenger_bond
        auditors = challengers if self.attestation_bond is None else self.attestation_bond
        return Terms(
            reward=reward,
            trainer_bond=bond,
            challenger_bond=challengers,
            commit_window=self.commit_window,
            challenge_window=self.challenge_window,
            clock_allowance=self.clock,
            referee_allowance=self.referee_clock,
            concurrent_games=self.concurrent_games,
            trainer=self.addresses()[1] or ANYONE,
            attestations_needed=self.attestations,
            audit_window=self.audit_window or 0,
            opening_window=self.opening_window or 0,
            audit_fee=self.audit_fee or 0,
            attestation_bond=auditors if self.attestations else 0,
        )


@dataclass(frozen=True, kw_only=True)
class AcceptedTerms:
    """Terms of strangers' jobs that a trainer or an auditor puts a bond on."""

    panel: ClassVar = "Jobs to put a bond on"
    trust_referee: list[str] | None = option(
        "Put bonds only on jobs with this referee, whose word can take them; repeatable.", metavar="ADDRESS"
    )
    least_clock: int | None = _time(
        "Leave jobs alone whose clocks give less, e.g. 10m (default: what the job and this machine need)."
    )
    most_bond: int | None = _amount("Leave jobs alone that ask for a higher bond, e.g. 0.5ether.")
    least_reward: int = _amount("Leave jobs alone that pay less, e.g. 0.05ether.", DEFAULT_FLOOR)
    least_bond: int = _amount(
        "Leave jobs alone whose trainers have less at stake; an auditor that catches one gets a part of it.",
        DEFAULT_FLOOR,
    )
    least_fee: int = _amount("Give no attestation that is sure of less of the audit fee, e.g. 0.01ether.", "0ether")
    without_fee: bool = option("Attest also where others have all places with a share of the audit fee.", False)

    def policy(self) -> Policy:
        """Return the policy that these options ask for. Raises CommandError for a referee that is no address."""
        from tiebreak.roles.policy import Policy

        referees = frozenset(network.address(text, "the trusted referee") for text in self.trust_referee or [])
        return Policy(
            referees=referees or None,
            least_clock=self.least_clock,
            most_bond=self.most_bond,
            least_reward=self.least_reward,
            least_bond=self.least_bond,
            least_fee=self.least_fee,
            without_fee=self.without_fee,
        )
