// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Finding, IAdjudicator, Partial} from "./adjudication/IAdjudicator.sol";
import {Children, Side} from "./Bisection.sol";
import {Level} from "./Level.sol";
import {Node} from "./Merkle.sol";
import {ElementProof, LeafOpening, NextRoot, OperatorOpening, PartialsOpening, SegmentProof} from "./Moves.sol";
import {Duration, Timestamp} from "./Time.sol";
import {TrainingSpec} from "./TrainingSpec.sol";
import {Answer, GameView, JobView} from "./Views.sol";

/// @notice A posted training job. Counted from 1.
type JobId is uint64;

/// @notice One challenger's game against one claim. Counted from 1 over all jobs.
type GameId is uint64;

/// @notice Terms of a job: the customer's offer and conditions. Amounts in wei.
struct Terms {
    /// Escrowed with the job; the trainer's once the claim is final.
    uint128 reward;
    /// Sent with the claim.
    uint128 trainerBond;
    /// Sent with every challenge.
    uint128 challengerBond;
    /// From the posting to the last instant at which a trainer may commit.
    Duration commitWindow;
    /// From the claim to the last instant at which an auditor may challenge.
    Duration challengeWindow;
    /// Each side's whole thinking time in one game.
    Duration clockAllowance;
    /// The referee's time for one verdict.
    Duration refereeAllowance;
    /// Games that are played at a time; all others wait for their turn, and their clocks with them.
    uint32 concurrentGames;
    /// The only account that may commit; zero for anyone.
    address trainer;
}

/// @notice Status of a job.
enum JobStatus {
    /// No such job.
    NONE,
    /// Posted; waits for a claim.
    OPEN,
    /// A trainer has committed; may be challenged, and becomes FINAL or REJECTED.
    CLAIMED,
    /// The claim stands; reward and bond are the trainer's.
    FINAL,
    /// A game ended against the claim; the reward is the customer's again.
    REJECTED,
    /// Nobody committed in time; the reward is the customer's again.
    EXPIRED
}

/// @notice Phase of a game.
enum Phase {
    /// No such game.
    NONE,
    /// Waits until an earlier game of the job is over; no clock runs.
    QUEUED,
    /// One side's clock runs: `bisect` is due from `turn`.
    BISECTION,
    /// The clock of each side that has not spoken yet runs: `openLevel` at levels CHECKPOINT and STEP, `openOperator` at OPERATOR,
    /// `openPartials` at PARTIAL.
    OPENING,
    /// The trainer's clock runs: `postChunk`.
    POSTING,
    /// The challenger's clock runs: `proveStore` at OPERATOR, `proveElement` or `disputeSum` at CHUNK, `proveSegment` at PARTIAL.
    PROVING,
    /// The referee's clock runs: `adjudicate`.
    REFEREE,
    /// Over; see `outcome`.
    OVER
}

/// @notice Outcome of a game.
enum Outcome {
    /// Still live.
    NONE,
    /// The challenger lost its bond; the claim stands as far as this game goes.
    TRAINER_WON,
    /// The trainer lost its bond; the claim is rejected.
    CHALLENGER_WON,
    /// Both sides' padding was wrong, or both let their time run out; the claim is rejected, and of both bonds half is the
    /// customer's and half is burnt.
    BOTH_LOST,
    /// The referee fell silent; the claim is rejected, both bonds return.
    UNDECIDED,
    /// Another game rejected the claim first; the challenger's bond returns.
    VOID
}

/// @notice Reason for which a game ended.
enum Reason {
    NONE,
    /// The contract has computed what was disputed: an element, a segment, or what a store keeps.
    PROOF,
    /// The referee's verdict.
    VERDICT,
    /// A clock ran out.
    TIMEOUT,
    /// The trees first differ in the padding, where only PAD is right.
    PADDING,
    /// The claim was rejected in another game.
    CLAIM_REJECTED
}

/// @title Verification game
/// @notice A customer posts a job, a trainer claims a result, anyone may challenge the claim; a game between the two finds the first
///         number on which they disagree, computes it, and moves the bonds. No owner, no upgrade, no pause; payments are pulled.
/// @dev A whole dispute, in order of calls ("either" is: by the sides in either order):
///        postJob, commit, challenge,
///        bisect x depth(CHECKPOINT), openLevel by either,    (a search: challenger first, then in turns)
///        bisect x depth(STEP), openLevel by either,
///        bisect x depth(OPERATOR), then
///          proveStore                                         if all operators agree, and what a store keeps does not
///          openOperator by either, bisect x depth(CHUNK), postChunk, then
///            proveElement, and adjudicate if the contract's precision does not decide the element
///            disputeSum, openPartials by either, bisect x depth(PARTIAL), proveSegment      if its terms make several segments.
///      A challenge for which there is no place waits (QUEUED) until an earlier game is over, in the order of the challenges.
///      At any point claimTimeout once a clock has run out; then releaseBond by the other challengers, and withdraw.
///      An undisputed claim: postJob, commit, (attest), finalize, withdraw.
///      Errors of proofs and openings: see `Merkle`, `Bisections`, `Clocks`, and the adjudicator that the spec names.
interface IVerificationGame {
    // ------------------------------------------------------------------------------------------------------------------ events

    /// @notice A customer has posted a job and escrowed its reward.
    event JobPosted(
        JobId indexed job, address indexed customer, bytes32 indexed specHash, TrainingSpec spec, Terms terms, string jobCid
    );
    /// @notice Nobody has committed in time; the reward is the customer's again.
    event JobExpired(JobId indexed job);
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
    /// @notice An auditor states that its audit gave the same root.
    event Attested(JobId indexed job, address indexed auditor);
    /// @notice A claim is challenged with another root.
    event Challenged(JobId indexed job, GameId indexed game, address indexed challenger, Node checkpointRoot);
    /// @notice A game's turn has come: its clocks run from now on.
    event GameStarted(JobId indexed job, GameId indexed game);

    /// @notice A level's search begins.
    event LevelStarted(
        GameId indexed game, Level indexed level, Node trainerRoot, Node challengerRoot, Children trainerChildren, uint64 leafCount
    );
    /// @notice A move: `mover` opened its node at (`index`, `height`) into `opened`, and its node below it into `next`.
    /// @param index Leftmost leaf below the place from which the move descends.
    /// @param height Height of that place above the leaves.
    /// @param wentLeft True if the search went left.
    event Bisected(
        GameId indexed game,
        Level indexed level,
        Side indexed mover,
        uint64 index,
        uint8 height,
        bool wentLeft,
        Children opened,
        Children next
    );
    /// @notice The search of a level has ended at leaf `index`; each side's leaf hash.
    event LeafFound(GameId indexed game, Level indexed level, uint64 index, Node trainerLeaf, Node challengerLeaf);
    /// @notice A side has revealed its payload of the disputed leaf, and the agreed one before it.
    event LeafOpened(GameId indexed game, Level indexed level, Side indexed side, bytes32 payload, bytes32 agreed);
    /// @notice A side has opened its root for the next level.
    event RootOpened(GameId indexed game, Level indexed nextLevel, Side indexed side, Node root);
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
    /// @notice An account may withdraw so much more.
    event Credited(address indexed account, uint256 amount);
    /// @notice A part of the bonds that were lost in this game stays in the contract for good.
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
    error AlreadyAttested(JobId job, address auditor);
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

    /// @notice Posts a job and escrows its reward (`msg.value` = `terms.reward`).
    /// @param jobCid content address of the job's files, 1 to 128 bytes
    function postJob(TrainingSpec calldata spec, Terms calldata terms, string calldata jobCid) external payable returns (JobId job);

    /// @notice Returns the reward of a job to which nobody committed in time. Anyone may send it.
    function reclaim(JobId job) external;

    /// @notice Claims a result (`msg.value` = `terms.trainerBond`).
    /// @param specHash of the job's spec, so that a reorganisation cannot point the claim at another job
    /// @param checkpointRoot root over the steps / interval state roots
    /// @param finalStateRoot the last of them
    /// @param proof its siblings, from the leaf upwards
    function commit(
        JobId job,
        bytes32 specHash,
        Node checkpointRoot,
        bytes32 finalStateRoot,
        bytes32[] calldata proof,
        string calldata logCid,
        string calldata modelCid
    ) external payable;

    /// @notice States in public that the caller's audit gave the same root. Moves no money; once per account.
    /// @param specHash of the job's spec
    /// @param checkpointRoot the root that the auditor computed, which has to be the committed one
    function attest(JobId job, bytes32 specHash, Node checkpointRoot) external;

    /// @notice Challenges the claim (`msg.value` = `terms.challengerBond`). The game starts, and with it the challenger's clock, at once if fewer
    ///         than `terms.concurrentGames` are live, else when its turn comes.
    /// @param specHash of the job's spec, so that a reorganisation cannot point the challenge at another job
    /// @param claimedRoot the root that the trainer committed to
    /// @param checkpointRoot the root that the challenger computed
    function challenge(JobId job, bytes32 specHash, Node claimedRoot, Node checkpointRoot) external payable returns (GameId game);

    /// @notice Pays the trainer, strictly after the challenge deadline and with no game live or queued. Anyone may send it.
    function finalize(JobId job) external;

    // --------------------------------------------------------------------------------------------------------------- the game

    /// @notice Makes the next move of the search, for the side whose turn it is. Hashes force it, so anyone may send it.
    /// @param opened children of that side's node at the present place
    /// @param next children of that side's node one level below, in the leftmost half that differs; zero when that is a leaf
    function bisect(GameId game, Children calldata opened, Children calldata next) external;

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

    // ------------------------------------------------------------------------------------------------------------------- views

    function getJob(JobId job) external view returns (JobView memory);

    function getGame(GameId game) external view returns (GameView memory);

    /// @notice Games of a job in the order of their challenges, which is that in which they start, `limit` of them at most, from `offset`.
    function gamesOf(JobId job, uint256 offset, uint256 limit) external view returns (GameId[] memory);

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
