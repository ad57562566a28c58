// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Finding, IAdjudicator, Partial} from "./adjudication/IAdjudicator.sol";
import {Descent, Side} from "./game/Bisection.sol";
import {Level} from "./game/Level.sol";
import {Node} from "./Merkle.sol";
import {ElementProof, LeafOpening, NextRoot, OperatorOpening, PartialsOpening, SegmentProof} from "./game/Moves.sol";
import {Timestamp} from "./Time.sol";
import {TrainingSpec} from "./TrainingSpec.sol";
import {AuditStatus, GameId, JobId, JobStatus, Outcome, Phase, Reason, Terms} from "./Types.sol";
import {Answer, AuditView, GameView, JobView} from "./Views.sol";

/// @title Verification game
/// @notice A customer posts a job, a trainer claims a result, anyone may challenge the claim; a game between the two finds the first
///         number on which they disagree, computes it, and moves the bonds. No owner, no upgrade, no pause; payments are pulled.
/// @dev A whole dispute, in order of calls ("either" is: by the sides in either order):
///        postJob, commit, challenge,
///        bisect x moves(CHECKPOINT), openLevel by either,    (a search: in turns, a quarter of its depth)
///        bisect x moves(STEP), openLevel by either,
///        bisect x moves(OPERATOR), then
///          proveStore                                         if all operators agree, and what a store keeps does not
///          openOperator by either, bisect x moves(CHUNK), postChunk, then
///            proveElement, and adjudicate if the contract's precision does not decide the element
///            disputeSum, openPartials by either, bisect x moves(PARTIAL), proveSegment      if its terms make several segments.
///      A challenge for which there is no place waits (QUEUED) until an earlier game is over, in the order of the challenges.
///      At any point claimTimeout once a clock has run out; then releaseBond by the other challengers, and withdraw.
///      An undisputed claim: postJob, commit, (attest), finalize, collect by those who attested with a bond, withdraw.
///      Blind audits: sealClaim and sealAudit instead of commit and attest; then openClaim, openAudit, and startGame for each challenge.
///      Bonded attestations against a game that a challenger has won: appeal, a game of its own; then finalize.
///      Errors of proofs and openings: see `Merkle`, `Bisections`, `Clocks`, and the adjudicator that the spec names.
interface IVerificationGame {
    // ------------------------------------------------------------------------------------------------------------------ events

    /// @notice A customer has posted a job and escrowed its reward.
    event JobPosted(
        JobId indexed job, address indexed customer, bytes32 indexed specHash, TrainingSpec spec, Terms terms, string jobCid
    );
    /// @notice Nobody has claimed in time, or opened a sealed claim in time; the reward is the customer's again.
    event JobExpired(JobId indexed job);
    /// @notice A trainer has sealed a claim; audits may be sealed until the deadline.
    event ClaimSealed(JobId indexed job, address indexed trainer, bytes32 seal, Timestamp auditDeadline);
    /// @notice An auditor has sealed an audit, or replaced its seal.
    event AuditSealed(JobId indexed job, address indexed auditor, bytes32 seal);
    /// @notice A sealed claim or audit was not opened in time; its bond is lost.
    event SealForfeited(JobId indexed job, address indexed account);
    /// @notice A trainer has claimed a result.
    event Committed(
        JobId indexed job,
        address indexed trainer,
        Node checkpointRoot,
        bytes32 finalStateRoot,
        string logCid,
        string modelCid,
        Timestamp challengeDeadline
    );
    /// @notice With a claim: the row of its root.
    event RowShown(JobId indexed job, Node[] row);
    /// @notice An auditor states that its audit gave the same root, and where it serves log and model.
    event Attested(JobId indexed job, address indexed auditor, string logCid, string modelCid);
    /// @notice A claim is challenged with another root.
    event Challenged(JobId indexed job, GameId indexed game, address indexed challenger, Node checkpointRoot);
    /// @notice A game's turn has come: its clocks run from now on.
    event GameStarted(JobId indexed job, GameId indexed game);

    /// @notice A level's search begins.
    event LevelStarted(
        GameId indexed game, Level indexed level, Node trainerRoot, Node challengerRoot, Side first, uint64 leafCount
    );
    /// @notice A move: `mover` found the first node that differs below the place (`index`, `height`), and has shown its row there.
    /// @param index Leftmost leaf below the place from which the move descends.
    /// @param height Height of that place above the leaves.
    /// @param to Leftmost leaf below the place to which it descends.
    /// @param next The mover's row there; empty if that is a leaf.
    event Bisected(
        GameId indexed game, Level indexed level, Side indexed mover, uint64 index, uint8 height, uint64 to, Node[] next
    );
    /// @notice The search of a level has ended at leaf `index`; each side's leaf hash.
    event LeafFound(GameId indexed game, Level indexed level, uint64 index, Node trainerLeaf, Node challengerLeaf);
    /// @notice A side has revealed its payload of the disputed leaf, and the agreed one before it.
    event LeafOpened(GameId indexed game, Level indexed level, Side indexed side, bytes32 payload, bytes32 agreed);
    /// @notice A side has opened its root for the next level, and, if it is the first, shown its row.
    event RootOpened(GameId indexed game, Level indexed nextLevel, Side indexed side, Node root, Node[] row);
    /// @notice The numbers in the disputed operator's descriptor; emitted once, when the first side opens it.
    event OperatorKnown(
        GameId indexed game, uint64 operator, bytes32 descriptorHash, uint8 width, uint64 elements, uint64 chunks, uint64 segments
    );
    /// @notice The trainer's chunk number `index` of the disputed operator's output.
    event ChunkPosted(GameId indexed game, uint64 index, bytes chunk);
    /// @notice The contract has computed an element; the trainer's bits of it are `claimed`. With finding VALUE, `bits` are the element's,
    ///         with UNDECIDED the function's argument's.
    event ElementProven(GameId indexed game, uint64 element, uint64 claimed, Finding finding, uint64 bits);
    /// @notice The challenger disputes an element that is a sum; the trainer's bits of it are `claimed`.
    event ElementDisputed(GameId indexed game, uint64 element, uint64 claimed);
    /// @notice The contract has computed the running result after a segment.
    event SegmentProven(GameId indexed game, uint64 segment, Finding finding, Partial afterwards);
    /// @notice The store of a state slot has to keep the tensor root `payload`.
    event StoreProven(GameId indexed game, uint64 slot, bytes32 payload);
    /// @notice The referee's clock runs. The referee computes one element of the disputed operator; the trainer's bits of it are `claimed`.
    event RefereeCalled(GameId indexed game, address indexed referee, uint64 element, uint64 claimed, Timestamp deadline);
    /// @notice The referee has given its verdict: the bits of the disputed element.
    event Adjudicated(GameId indexed game, uint64 bits);
    /// @notice A game has ended.
    event GameOver(JobId indexed job, GameId indexed game, Outcome outcome, Reason reason);
    /// @notice A lost game has rejected the claim; all other games of the job are void.
    event ClaimRejected(JobId indexed job, GameId indexed game);
    /// @notice The claim stands; reward and bond are the trainer's.
    event ClaimFinal(JobId indexed job, address indexed trainer, bytes32 finalStateRoot);
    /// @notice Too few have attested to the claim; everybody has back what it paid in.
    event ClaimLapsed(JobId indexed job, address indexed trainer);
    /// @notice A game has ended against a claim with bonded attestations, whose auditors may appeal until the deadline.
    event VerdictAppealable(JobId indexed job, GameId indexed game, Timestamp appealDeadline);
    /// @notice An auditor plays the game that the trainer has lost again, on the trainer's side.
    event Appealed(JobId indexed job, GameId indexed game, address indexed appellant);
    /// @notice No appeal was won: the verdict takes the bonds of trainer and attestations.
    event VerdictUpheld(JobId indexed job, GameId indexed game);
    /// @notice An appeal was won: the bonds of the attestations return.
    event VerdictOverturned(JobId indexed job, GameId indexed game);
    /// @notice An auditor's bond is credited to it, with its share of the fee if it has one.
    event Collected(JobId indexed job, address indexed auditor, uint256 amount);
    /// @notice An account may withdraw so much more.
    event Credited(address indexed account, uint256 amount);
    /// @notice A part of the bonds that were lost in this game stays in the contract for good; game 0: of a bond that was not opened.
    event Burnt(GameId indexed game, uint256 amount);
    /// @notice An account has been paid everything that was credited to it.
    event Withdrawn(address indexed account, uint256 amount);

    // ------------------------------------------------------------------------------------------------------------------ errors

    /// @notice A field of the spec or of the terms is out of its range; `field` is its name.
    error FieldOutOfRange(string field, uint256 value, uint256 minimum, uint256 maximum);
    error IntervalDoesNotDivideSteps(uint64 interval, uint64 steps);
    /// @notice Chunks have to be whole numbers of elements.
    error ChunkSizeSplitsElements(uint32 chunkSize);
    /// @notice There is no contract at this address.
    error NoAdjudicator(address adjudicator);
    error CidLengthOutOfRange(uint256 length, uint256 maximum);
    error WrongPayment(uint256 sent, uint256 expected);
    error WrongJobStatus(JobId job, JobStatus actual, JobStatus expected);
    error WrongPhase(GameId game, Phase actual, Phase expected);
    /// @notice The job has another spec than the caller believes, perhaps because the chain was reorganised.
    error WrongSpec(bytes32 given, bytes32 expected);
    /// @notice A batch holds no batch.
    error NestedBatch();
    error NotTheTrainer(address caller, address trainer);
    error NotTheParty(address caller, Side side, address party);
    error NotTheReferee(address caller, address referee);
    /// @notice The instant is over at which this could be done.
    error TooLate(Timestamp current, Timestamp deadline);
    /// @notice The instant has not come yet at which this can be done: strictly after `deadline`.
    error TooEarly(Timestamp current, Timestamp deadline);
    /// @notice The side has let its clock run out; it cannot move any more.
    error ClockRanOut(GameId game, Side side, Timestamp deadline);
    /// @notice The account has an audit of this job already.
    error AlreadyAttested(JobId job, address auditor);
    /// @notice The job's claim and audits are sealed first.
    error AuditsAreBlind(JobId job);
    /// @notice The job's claim and audits are not sealed.
    error AuditsAreOpen(JobId job);
    /// @notice What was opened is not what this account has sealed.
    error WrongSeal(bytes32 computed, bytes32 expected);
    error WrongAuditStatus(JobId job, address auditor, AuditStatus actual, AuditStatus expected);
    /// @notice The audit would have a later place than its sender takes.
    error PlaceTaken(JobId job, uint256 place, uint256 last);
    error AlreadyAppealed(GameId appeal);
    /// @notice The account's audit has brought nothing, or not yet.
    error NothingToCollect(JobId job, address auditor);
    /// @notice No game waits, or there is no place for one, or audits are still being opened.
    error NoGameToStart(JobId job);
    /// @notice The account has a game with this root, which is not over: a second bond would win nothing.
    error AlreadyChallenged(GameId game);
    /// @notice The root is not the one that the trainer committed to.
    error AnotherRootWasCommitted(Node given, Node committed);
    /// @notice A challenge must name a different root.
    error RootIsTheTrainers(Node root);
    /// @notice Games are played, or wait for their turn.
    error LiveGames(JobId job, uint64 count);
    /// @notice The side has already opened this leaf.
    error AlreadyOpened(GameId game, Side side);
    /// @notice The call belongs to another level of the game.
    error WrongLevel(GameId game, Level level);
    /// @notice The payload does not hash to the side's leaf.
    error WrongLeafPayload(Node computed, Node expected);
    /// @notice Before leaf 0 stands what was agreed above this level; it needs no proof.
    error WrongAgreedPayload(bytes32 given, bytes32 expected);
    /// @notice This is not the descriptor that the game is about.
    error WrongDescriptor(bytes32 given, bytes32 expected);
    /// @notice A chunk has exactly as many bytes as the descriptor says.
    error WrongChunkLength(uint256 given, uint256 expected);
    /// @notice The disputed chunk has no such element.
    error PositionOutOfRange(uint256 position, uint256 count);
    /// @notice There have to be as many tensor roots as the descriptor has inputs.
    error WrongNumberOfOperands(uint256 given, uint256 expected);
    /// @notice Only what an operator before the disputed one has computed is agreed.
    error OperandNotBefore(uint64 operand, uint64 operator);
    /// @notice `proveElement` is for elements whose terms make at most one segment, `disputeSum` for all others.
    error WrongNumberOfSegments(GameId game, uint64 segments);
    /// @notice The contract computes the trainer's bits: dispute another element.
    error ElementIsRight(uint64 element, uint64 bits);
    /// @notice The trainer's last running result has to come to the bits that it claims, and the challenger's must not.
    error WrongLastPartial(Side side, Finding finding, uint64 bits, uint64 claimed);
    /// @notice The adjudicator does not know a segment that it has to know.
    error SegmentUndecided(GameId game, uint64 segment);
    /// @notice The challenger's bond has left this game already.
    error BondNotHeld(GameId game);
    error NothingToWithdraw(address account);
    error WithdrawalFailed(address account, uint256 amount);

    // -------------------------------------------------------------------------------------------------------------- the claim

    /// @notice Posts a job and escrows its reward and fee (`msg.value` = `terms.reward` + `terms.auditFee`).
    /// @param jobCid content address of the job's files, 1 to 128 bytes
    function postJob(TrainingSpec calldata spec, Terms calldata terms, string calldata jobCid) external payable returns (JobId job);

    /// @notice Returns reward and fee of a job to which nobody committed in time, or whose sealed claim was not opened in time. Such a
    ///         claim's bond is lost: half is the customer's, half is burnt. Anyone may send it.
    function reclaim(JobId job) external;

    /// @notice Claims a result (`msg.value` = `terms.trainerBond`).
    /// @param specHash of the job's spec, so that a reorganisation cannot point the claim at another job
    /// @param claimed root over the steps / interval state roots, its row, and the proof of its last leaf
    /// @param finalStateRoot the last of them
    function commit(
        JobId job,
        bytes32 specHash,
        NextRoot calldata claimed,
        bytes32 finalStateRoot,
        string calldata logCid,
        string calldata modelCid
    ) external payable;

    /// @notice Blind audits: claims a result that is not known yet (`msg.value` = `terms.trainerBond`).
    /// @param specHash of the job's spec
    /// @param seal keccak256 of the encoding of chain id, this contract, job, sender, root, final state, both addresses and a salt (`Seals`)
    function sealClaim(JobId job, bytes32 specHash, bytes32 seal) external payable;

    /// @notice Opens the sender's sealed claim, strictly after the audit deadline and by the opening deadline.
    /// @param salt of the seal; the rest as of `commit`
    function openClaim(
        JobId job,
        NextRoot calldata claimed,
        bytes32 finalStateRoot,
        string calldata logCid,
        string calldata modelCid,
        bytes32 salt
    ) external;

    /// @notice States that the caller's audit gave the same root (`msg.value` = `terms.attestationBond`), once per account, and, where the job
    ///         needs attestations, that the caller serves log and model by these addresses.
    /// @param specHash of the job's spec
    /// @param checkpointRoot the root that the auditor computed, which has to be the committed one
    /// @param lastPlace the last place that the sender takes, counted from 0; the first `terms.attestationsNeeded` have a share of the fee
    function attest(
        JobId job,
        bytes32 specHash,
        Node checkpointRoot,
        string calldata logCid,
        string calldata modelCid,
        uint64 lastPlace
    ) external payable;

    /// @notice Blind audits: states a root that is not known yet (`msg.value` = `terms.attestationBond`), once per account.
    /// @param specHash of the job's spec
    /// @param seal keccak256 of the encoding of chain id, this contract, job, sender, root and a salt (`Seals`); or any bytes, which take a place
    ///        before the work is done, for `replaceSeal`
    /// @param lastPlace as of `attest`
    function sealAudit(JobId job, bytes32 specHash, bytes32 seal, uint64 lastPlace) external payable;

    /// @notice Puts another seal in the place of the sender's, by the audit deadline, as often as it likes. Place and bond stay.
    function replaceSeal(JobId job, bytes32 seal) external;

    /// @notice Opens the sender's sealed audit by the audit opening deadline; else its bond is lost. With the trainer's root it attests to the
    ///         claim, with another one it is a challenge.
    /// @param logCid where the auditor serves the log; of an attestation
    /// @param modelCid where it serves the model
    /// @return game the challenge's; zero if it attests
    function openAudit(JobId job, Node checkpointRoot, string calldata logCid, string calldata modelCid, bytes32 salt)
        external
        returns (GameId game);

    /// @notice Challenges the claim (`msg.value` = `terms.challengerBond`). The game starts, and with it the challenger's clock, at once if fewer
    ///         than `terms.concurrentGames` are live, else when its turn comes.
    /// @param specHash of the job's spec, so that a reorganisation cannot point the challenge at another job
    /// @param claimedRoot the root that the trainer committed to
    /// @param checkpointRoot the root that the challenger computed
    function challenge(JobId job, bytes32 specHash, Node claimedRoot, Node checkpointRoot) external payable returns (GameId game);

    /// @notice Blind audits: starts the game whose turn it is, once all audits were opened or lost. Anyone may send it.
    function startGame(JobId job) external;

    /// @notice Plays the game that the trainer has lost again (`msg.value` = `terms.challengerBond`), once for each attestation with a bond.
    /// @param specHash of the job's spec
    function appeal(JobId job, bytes32 specHash) external payable returns (GameId game);

    /// @notice Ends a job, with no game live or queued: strictly after the challenge deadline it pays the trainer, or, with too few
    ///         attestations, everybody back; strictly after the appeal deadline, the winner. Anyone may send it.
    function finalize(JobId job) external;

    /// @notice Credits an auditor's bond, and its share of the fee, once the job is over, or takes the bond of an audit that was not opened.
    ///         Anyone may send it.
    function collect(JobId job, address auditor) external;

    // --------------------------------------------------------------------------------------------------------------- the game

    /// @notice Makes the next move of the search, for the side whose turn it is. Hashes force it, so anyone may send it.
    function bisect(GameId game, Descent calldata move) external;

    /// @notice Opens the disputed leaf of level CHECKPOINT or STEP, and the side's tree below it. Only that side's party.
    function openLevel(GameId game, Side side, LeafOpening calldata leaf, NextRoot calldata next) external;

    /// @notice Opens the disputed leaf of level OPERATOR, which is the side's root of level CHUNK. Hashes force it, so anyone may send it.
    function openOperator(GameId game, Side side, OperatorOpening calldata opening) external;

    /// @notice Settles a disputed store: all operators agree, so they say what the state slot has to hold. Anyone may send it.
    /// @param payload the tensor root that the store operator keeps
    /// @param proof that it is this operator's leaf of the challenger's trace (both are equal there)
    function proveStore(GameId game, bytes32 payload, bytes32[] calldata proof) external;

    /// @notice Posts the trainer's bytes of the disputed chunk. Hashes force it, so anyone may send it.
    function postChunk(GameId game, bytes calldata chunk) external;

    /// @notice Has the contract compute one element of the disputed chunk, which proves the trainer wrong. Anyone may send it; only the
    ///         challenger if the contract's precision does not decide the element, which then goes to the referee.
    function proveElement(GameId game, ElementProof calldata proof) external;

    /// @notice Names the disputed element, whose terms make several segments. Only the challenger.
    /// @param chunk the trainer's chunk
    /// @param position which element of the chunk, counted in elements
    function disputeSum(GameId game, bytes calldata descriptor, bytes calldata chunk, uint32 position) external;

    /// @notice Opens a side's tree over the running results of the disputed element. Only that side's party.
    function openPartials(GameId game, Side side, PartialsOpening calldata opening) external;

    /// @notice Has the contract compute the disputed segment, on top of the agreed running result before it. Anyone may send it.
    function proveSegment(GameId game, SegmentProof calldata proof) external;

    /// @notice The referee's verdict: the bits of the disputed element.
    function adjudicate(GameId game, uint64 bits) external;

    /// @notice Ends a game in which a clock has run out. Anyone may send it, at any time after; the outcome does not depend on when.
    function claimTimeout(GameId game) external;

    /// @notice Returns the bond of a challenger whose game became void because another game rejected the claim. Anyone may send it.
    function releaseBond(GameId game) external;

    /// @notice Pays out everything credited to the caller.
    function withdraw() external returns (uint256 amount);

    /// @notice Makes several calls of this contract, each as if the sender had made it alone; one that fails undoes only itself. Calls that
    ///         need a payment fail. With `eth_call`, many views in one request.
    /// @param calls selector and arguments of each; no `batch`
    function batch(bytes[] calldata calls) external returns (Answer[] memory answers);

    /// @notice Makes several calls of this contract, each as if the sender had made it alone, all of them or none: such as a side's opening of
    ///         its root and, if the other side has opened before, its first move of the search below.
    /// @param calls selector and arguments of each; no `batch`
    function inTurn(bytes[] calldata calls) external;

    // ------------------------------------------------------------------------------------------------------------------- views

    function getJob(JobId job) external view returns (JobView memory);

    function getGame(GameId game) external view returns (GameView memory);

    /// @notice Games of a job in the order of their challenges, which is that in which they start, `limit` of them at most, from `offset`.
    function gamesOf(JobId job, uint256 offset, uint256 limit) external view returns (GameId[] memory);

    /// @notice Audits with a bond in the order in which they came, `limit` of them at most, from `offset`.
    function auditsOf(JobId job, uint256 offset, uint256 limit) external view returns (AuditView[] memory);

    /// @notice Jobs ever posted; their ids are 1 to this.
    function jobCount() external view returns (uint64);

    /// @notice Games ever started; their ids are 1 to this.
    function gameCount() external view returns (uint64);

    /// @notice The adjudicator that was deployed with this contract. A job names its own, which need not be this one.
    function adjudicator() external view returns (IAdjudicator);

    /// @notice Wei that `withdraw` would pay to the account.
    function creditOf(address account) external view returns (uint256);

    /// @notice Wei of lost bonds that stay in the contract for good.
    function burnt() external view returns (uint256);

    function hasAttested(JobId job, address auditor) external view returns (bool);

    /// @notice keccak256(abi.encode(spec)).
    function hashSpec(TrainingSpec calldata spec) external pure returns (bytes32);
}
