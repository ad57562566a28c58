"""The verification game as Python methods: its views, its events, and its calls.

A call is a `ContractCall` of a function's name and its arguments; `paying` makes one that pays, with the name under
which it is paid once. `IVerificationGame.sol` says when each is due. `send` sends one and waits, `Sender.submit` and a
role's queue send without waiting, and a batch carries several. A move of a game is a `Move` (`tiebreak.strategy`).

All methods that ask raise the errors of `ChainNode`; `send` raises ContractError as well, with the name and the values
of the contract's own error, before anything is spent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from eth_typing import ChecksumAddress
from eth_utils.address import to_checksum_address

from tiebreak.contract.abi import ContractAbi
from tiebreak.contract.code import (
    ADJUDICATORS_PARTS,
    LIBRARIES,
    deploy_adjudicator,
    deploy_game,
    is_game,
)
from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.events import Event
from tiebreak.rpc.chain_errors import (
    REVERTED,
    AccountError,
    ChainError,
    ContractError,
    DeploymentError,
    InvalidAnswer,
    RpcRefused,
    TransactionFailed,
)
from tiebreak.rpc.node import ChainNode

if TYPE_CHECKING:
    from web3 import Web3
    from web3.contract import Contract
    from web3.providers import BaseProvider

    from tiebreak.contract.structs import Answer, AuditView, GameView, JobView, PostedSpec, Terms
    from tiebreak.rpc.answers import Log, Topic, TransactionReceipt
    from tiebreak.transactions.sender import Sender

_PAGE = 256
_MOST_ENTRIES = 1_000_000
"""Most games or audits of a job that are read: to make as many takes all the gas of Ethereum for a day and more."""

E = TypeVar("E", bound=Event)


class VerificationGame:
    """The contract at `address`; with a `sender` it can also be written to.

    `first_block` is where to start looking for events: the block of the deployment, or 0.
    """

    def __init__(
        self,
        chain: ChainNode | Web3 | BaseProvider,
        address: ChecksumAddress,
        sender: Sender | None = None,
        *,
        first_block: int = 0,
    ) -> None:
        """chain: a `Web3` with any provider and middleware, or a node that has confirmations and a stop event."""
        self.node = chain if isinstance(chain, ChainNode) else ChainNode(chain)
        # In one form only: names of payments hold it, and events are known by it.
        self.address = to_checksum_address(address)
        self.first_block = first_block
        self._sender = sender
        self._abi = ContractAbi.load("VerificationGame", *LIBRARIES, "Adjudicator", *ADJUDICATORS_PARTS)

    @classmethod
    def at(
        cls, node: ChainNode, address: ChecksumAddress, sender: Sender | None = None, *, first_block: int = 0
    ) -> VerificationGame:
        """Return the contract at an address that somebody gave us, once it is shown that its code and that of its
        libraries is this version's.

        Raises DeploymentError if it is not.
        """
        if not is_game(node, address):
            raise DeploymentError(
                f"{address} on chain {node.chain_id} does not hold this version of VerificationGame: check the address."
            )
        return cls(node, address, sender, first_block=first_block)

    @classmethod
    def deploy(cls, sender: Sender) -> VerificationGame:
        """Put a new contract on the chain, which belongs to nobody, with an adjudicator, and return it."""
        receipt = deploy_game(sender, deploy_adjudicator(sender))
        assert receipt.contract is not None
        return cls.at(sender.node, receipt.contract, sender, first_block=receipt.block)

    def by(self, sender: Sender) -> VerificationGame:
        """Return this contract, written to by another account."""
        return VerificationGame(self.node, self.address, sender, first_block=self.first_block)

    @property
    def contract(self) -> Contract:
        """web3's contract object at the same address, for what has no method here: filters, traces, other accounts."""
        return self.node.w3.eth.contract(address=self.address, abi=self._abi.entries)

    # views

    def job(self, job: int, *, block: int | None = None) -> JobView:
        """Return the job now, or as of block number `block`. Raises ContractError (WrongJobStatus) if there is none."""
        found: JobView = self._view("getJob", job, block=block)
        return found

    def game(self, game: int, *, block: int | None = None) -> GameView:
        """Return the game now, or as of block number `block`. Raises ContractError (WrongPhase) if there is none."""
        found: GameView = self._view("getGame", game, block=block)
        return found

    def games_of(self, job: int) -> list[int]:
        """Return the games of a job in the order of their challenges."""
        return self._all("gamesOf", job)

    def audits_of(self, job: int, *, block: int | None = None) -> list[AuditView]:
        """Return the audits with a bond of a job now, or as of block number `block`, in the order in which they
        came."""
        return self._all("auditsOf", job, block=block)

    def job_count(self) -> int:
        return int(self._view("jobCount"))

    def game_count(self) -> int:
        return int(self._view("gameCount"))

    def credit_of(self, account: ChecksumAddress, *, block: int | None = None) -> int:
        """Return the wei that `withdraw` would pay to the account now, or after block number `block`."""
        return int(self._view("creditOf", account, block=block))

    def has_attested(self, job: int, auditor: ChecksumAddress) -> bool:
        return bool(self._view("hasAttested", job, auditor))

    def adjudicator(self) -> ChecksumAddress:
        """Return the adjudicator that was deployed with the contract, the natural one for a new job."""
        found: ChecksumAddress = self._view("adjudicator")
        return found

    def burnt(self) -> int:
        """Return the wei of lost bonds that stay in the contract for good."""
        return int(self._view("burnt"))

    def views(self, calls: Sequence[ContractCall], *, block: int | None = None) -> list[Any]:
        """Return results of many views in one request, as of the newest block or of number `block`. A view that failed
        has its ContractError in place of a result."""
        answers = self._view("batch", [self.encode(call) for call in calls], block=block)
        return self.answers(calls, answers)

    def encode(self, call: ContractCall) -> bytes:
        """Return selector and arguments. Raises ValueError when an argument does not fit its type."""
        return self._abi.encode_call(call.function, *call.arguments)

    def explain(self, revert: bytes) -> ContractError:
        """Return the contract's own error in what a reverted call returned."""
        return self._abi.decode_error(revert)

    def answers(self, calls: Sequence[ContractCall], answers: Sequence[Answer]) -> list[Any]:
        """Return results of the calls of a batch: a value, None where a call returns nothing, or a ContractError.
        Raises InvalidAnswer when the node gave another number of answers."""
        if len(answers) != len(calls):
            raise InvalidAnswer(
                f"{self.node.name} gave {len(answers)} answers to {len(calls)} calls: use another node."
            )
        return [
            self._abi.decode_result(call.function, answer.data)
            if answer.success
            else self._abi.decode_error(answer.data)
            for call, answer in zip(calls, answers, strict=True)
        ]

    # calls

    def post_job(self, spec: PostedSpec, terms: Terms, job_cid: str, *, purpose: str | None = None) -> ContractCall:
        """Post a job, and pay its reward and audit fee into escrow. Without a `purpose` the same job may be posted
        again."""
        return ContractCall("postJob", (spec, terms, job_cid), value=terms.reward + terms.audit_fee, purpose=purpose)

    def paying(
        self, function: str, job: int, *, spec_hash: bytes, bond: int, about: str = "", **arguments: object
    ) -> ContractCall:
        """Return a call about a job that pays `bond` wei, once for the job, its spec and `about`. arguments: as in the
        contract, by their names in snake_case. Raises TypeError for others than the function has."""
        ordered = self._abi.ordered(function, {"spec_hash": spec_hash, **arguments})
        return ContractCall(function, (job, *ordered), bond, f"{function}{about} in {self.job_name(job, spec_hash)}")

    def job_name(self, job: int, spec_hash: bytes) -> str:
        """Return a job's part in the name of a payment. Its number alone is not unique: other contracts use it, too,
        and a reorganisation may give it to another job."""
        return f"job {job} of {self.address} with spec 0x{spec_hash.hex()}"

    def in_turn(self, calls: Sequence[ContractCall]) -> ContractCall:
        """Make several moves, all or none of them. Raises ValueError for a call that pays, which would fail."""
        return ContractCall("inTurn", (self._encoded(calls),))

    def batch(self, calls: Sequence[ContractCall]) -> ContractCall:
        """Make several calls in one transaction, each as if it had been sent alone. One that fails undoes only itself:
        look at the events of the receipt, or at the contract, for what came of each. Raises ValueError for a call that
        pays, which would fail."""
        return ContractCall("batch", (self._encoded(calls),))

    # sending

    def send(self, call: ContractCall) -> TransactionReceipt:
        """Make a call and wait for its receipt.

        Raises ContractError if the contract refuses, AccountError without an account, NodesDisagree if something new
        is to be begun while the nodes contradict each other, and the errors of Sender."""
        if self._sender is None:
            raise AccountError(f"{call.function} needs an account: give a keystore or a private key.")
        self.node.agreement.require(call.function)
        data = self.encode(call)
        try:
            return self._sender.send(self.address, data, value=call.value, purpose=call.purpose)
        except RpcRefused as error:
            raise self._typed(error) from error
        except TransactionFailed:
            # Somebody else was faster. The same call on the newest state mostly says in what.
            try:
                self.node.call(self.address, data, sender=self._sender.address, value=call.value)
            except RpcRefused as error:
                raise self._typed(error) from error
            raise

    def try_batch(self, calls: Sequence[ContractCall]) -> list[Any]:
        """Return results that a batch of the sender would have now, as `answers` gives them. Nothing is sent."""
        sender = None if self._sender is None else self._sender.address
        try:
            answer = self.node.call(self.address, self.encode(self.batch(calls)), sender=sender)
        except RpcRefused as error:
            raise self._typed(error) from error
        return self.answers(calls, self._abi.decode_result("batch", answer))

    # events

    def events(
        self,
        *,
        from_block: int | None = None,
        to_block: int | None = None,
        job: int | None = None,
        game: int | None = None,
    ) -> list[Event]:
        """Return all events in order, up to the newest confirmed block; of one job or one game if asked.

        From these a client can rebuild a game without any other source. The events of a job are those that carry its
        number: of its games only Challenged, GameOver and ClaimRejected.
        """
        start = self.first_block if from_block is None else from_block
        name, number = ("job", job) if job is not None else ("game", game)
        if number is None:
            return self.decode(self.node.logs(self.address, from_block=start, to_block=to_block))
        # The node selects, so that nobody can bury a game under the events of others.
        found: list[Log] = []
        for place, kinds in self._abi.events_about(name).items():
            topics: list[Topic] = [kinds, *([None] * (place - 1)), number.to_bytes(32, "big")]
            found += self.node.logs(self.address, from_block=start, to_block=to_block, topics=topics)
        found.sort(key=lambda log: (log.block, log.index))
        both = job is not None and game is not None
        return [event for event in self.decode(found) if not both or getattr(event, "game", None) == game]

    def decode(self, logs: Iterable[Log]) -> list[Event]:
        """Return the contract's own events among `logs`, for example those of a receipt."""
        found = (self._abi.decode_event(log) for log in logs if log.address == self.address)
        return [event for event in found if event is not None]

    def event(self, receipt: TransactionReceipt, kind: type[E]) -> E:
        """Return the one event of a kind in a receipt. Raises InvalidAnswer if there is none, or more."""
        found = [event for event in self.decode(receipt.logs) if isinstance(event, kind)]
        if len(found) != 1:
            raise InvalidAnswer(
                f"{self.node.name} gave a receipt with {len(found)} events {kind.__name__} where one was due: "
                "use another node."
            )
        return found[0]

    def _all(self, function: str, job: int, *, block: int | None = None) -> list[Any]:
        """Return all pages of a view. Raises InvalidAnswer for a node that makes up page after page."""
        found: list[Any] = []
        while page := self._view(function, job, len(found), _PAGE, block=block):
            found += page
            if len(found) > _MOST_ENTRIES:
                raise InvalidAnswer(f"{self.node.name} shows endless {function} of job {job}: use another node.")
        return found

    def _view(self, function: str, *arguments: object, block: int | None = None) -> Any:
        call = self._abi.encode_call(function, *arguments)
        try:
            answer = self.node.call(self.address, call, block=block)
        except RpcRefused as error:
            raise self._typed(error) from error
        return self._abi.decode_result(function, answer)

    def _typed(self, error: RpcRefused) -> ChainError:
        if error.data or error.code == REVERTED:
            return self._abi.decode_error(error.data or b"")
        return error

    def _encoded(self, calls: Sequence[ContractCall]) -> list[bytes]:
        for call in calls:
            if call.value:
                raise ValueError(f"{call.function} pays {call.value} wei, and cannot be in a batch: send it alone.")
        return [self.encode(call) for call in calls]
