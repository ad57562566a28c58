// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Children, Side} from "./Bisection.sol";
import {Clock} from "./Clock.sol";
import {Level} from "./Level.sol";
import {Node} from "./Merkle.sol";
import {Duration, Timestamp} from "./Time.sol";
import {TrainingSpec} from "./TrainingSpec.sol";

/// @notice A posted training job. Counted from 1.
type JobId is uint256;

/// @notice One challenger's game against one claim. Counted from 1 over all jobs.
type GameId is uint256;

/// @notice What the customer offers and asks. Amounts in wei.
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
    /// The only account that may commit; zero for anyone.
    address trainer;
}

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

enum Phase {
    /// No such game.
    NONE,
    /// One side's clock runs: `bisect` is due from `turn`.
    BISECTION,
    /// The disputed leaf is found. The clock of each side that has not spoken yet runs: `openLevel`, or `revealLeaf` at the last level.
    OPENING,
    /// The referee's clock runs: `adjudicate`.
    REFEREE,
    /// Over; see `outcome`.
    OVER
}

/// @notice How a game ended.
enum Outcome {
    /// Still live.
    NONE,
    /// The challenger lost its bond; the claim stands as far as this game goes.
    TRAINER_WON,
    /// The trainer lost its bond; the claim is rejected.
    CHALLENGER_WON,
    /// Both sides were wrong, or both let their time run out; the claim is rejected, both bonds are the customer's.
    BOTH_LOST,
    /// The referee fell silent; the claim is rejected, both bonds return.
    UNDECIDED,
    /// Another game rejected the claim first; the challenger's bond returns.
    VOID
}

/// @notice Why a game ended.
enum Reason {
    NONE,
    /// The verdict equals one side's value, or neither's.
    VERDICT,
    /// A clock ran out.
    TIMEOUT,
    /// The trees first differ in the padding, where only PAD is right.
    PADDING,
    /// The claim was rejected in another game.
    CLAIM_REJECTED
}

/// @notice What a side says about the leaf that a level's search has found.
struct LeafOpening {
    /// The side's own payload of the disputed leaf (a state root).
    bytes32 payload;
    /// The payload of the leaf before it, on which both trees agree; before leaf 0, what the game agreed on above this level.
    bytes32 agreed;
    /// Proof of `agreed` into the side's own root; empty before leaf 0.
    bytes32[] agreedProof;
}

/// @notice The root that a side opens for the next level, tied to what it has claimed above.
struct NextRoot {
    Node root;
    /// Proof that the side's payload above is the last leaf of `root`.
    bytes32[] lastLeafProof;
}

/// @notice A job as `getJob` shows it.
struct JobView {
    JobStatus status;
    address customer;
    TrainingSpec spec;
    bytes32 specHash;
    Terms terms;
    string jobCid;
    Timestamp postedAt;
    /// Last instant for `commit`.
    Timestamp commitDeadline;
    ClaimView claim;
    /// Games still being played; has to be zero before `finalize`. Zero again once the claim is rejected.
    uint64 liveGames;
    /// All games ever started against the claim.
    uint64 gameCount;
    uint64 attestations;
}

/// @notice The claim of a job; all zero while the job waits for one.
struct ClaimView {
    address trainer;
    Node checkpointRoot;
    bytes32 finalStateRoot;
    string logCid;
    string modelCid;
    Timestamp committedAt;
    /// Last instant for `challenge`; `finalize` works strictly after it.
    Timestamp challengeDeadline;
}

/// @notice One level of a game, as far as it has come.
struct LevelView {
    Level level;
    uint64 leafCount;
    /// The two sides' roots, by Side.
    Node[2] roots;
    /// The two sides' nodes at the place reached, by Side; the leaf hashes once `height` is 0.
    Node[2] nodes;
    /// Children of the waiting side's node; zero once `height` is 0.
    Children revealed;
    uint64 index;
    uint8 height;
    Side turn;
    /// Which sides have opened the disputed leaf, by Side.
    bool[2] opened;
    /// The payloads that they opened, by Side.
    bytes32[2] payloads;
    /// What both sides agree on before leaf 0 of this level.
    bytes32 agreedBefore;
}

/// @notice A game as `getGame` shows it.
struct GameView {
    JobId job;
    address trainer;
    address challenger;
    Phase phase;
    Outcome outcome;
    Reason reason;
    uint128 trainerBond;
    uint128 challengerBond;
    /// Whether the challenger's bond is still escrowed; once the outcome is VOID, `releaseBond` returns it.
    bool bondHeld;
    /// By Side.
    Clock[2] clocks;
    /// Last instant for a move of each side whose clock runs, else zero; by Side.
    Timestamp[2] deadlines;
    /// Last instant for the verdict; zero before the referee's clock has started.
    Timestamp refereeDeadline;
    Timestamp startedAt;
    /// The payload agreed just before the disputed leaf of the deepest level whose leaf has been opened. In phase REFEREE: the
    /// state root from which the referee re-executes one step.
    bytes32 agreed;
    /// From CHECKPOINT down to the present level.
    LevelView[] levels;
}

/// @title Verification game
/// @notice A customer posts a job, a trainer claims a result, anyone may challenge the claim; a game between the two finds the first
///         training step on which they disagree, and its verdict moves the bonds. No owner, no upgrade, no pause; payments are pulled.
/// @dev A whole dispute, in order of calls:
///        postJob, commit, challenge,
///        bisect x depth(CHECKPOINT)  (challenger first, then in turns),
///        openLevel(TRAINER) and openLevel(CHALLENGER) in either order,
///        bisect x depth(STEP),
///        revealLeaf(TRAINER) and revealLeaf(CHALLENGER) in either order,
///        adjudicate, then releaseBond by the other challengers, and withdraw.
///      At any point claimTimeout once a clock has run out. An undisputed claim: postJob, commit, (attest), finalize, withdraw.
interface IVerificationGame {
    // ------------------------------------------------------------------------------------------------------------------ events

    event JobPosted(
        JobId indexed job, address indexed customer, bytes32 indexed specHash, TrainingSpec spec, Terms terms, string jobCid
    );
    event JobExpired(JobId indexed job);
    event Committed(
        JobId indexed job,
        address indexed trainer,
        Node checkpointRoot,
        bytes32 finalStateRoot,
        string logCid,
        string modelCid,
        Timestamp challengeDeadline
    );
    event Attested(JobId indexed job, address indexed auditor);
    event Challenged(JobId indexed job, GameId indexed game, address indexed challenger, Node checkpointRoot);

    /// @notice A level's search begins.
    event LevelStarted(
        GameId indexed game, Level indexed level, Node trainerRoot, Node challengerRoot, Children trainerChildren, uint64 leafCount
    );
    /// @notice A move: `mover` opened its node at (`index`, `height`) into `opened`, and its node below it into `next`.
    /// @param index leftmost leaf below the place from which the move descends
    /// @param height height of that place
    /// @param wentLeft whether the search went left
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
    /// @notice The referee's clock runs. It re-executes the step that leads from `agreed` to leaf `index` of the last level.
    event RefereeCalled(GameId indexed game, address indexed referee, bytes32 agreed, Timestamp deadline);
    event Adjudicated(GameId indexed game, bytes32 stateRoot);
    event GameOver(JobId indexed job, GameId indexed game, Outcome outcome, Reason reason);
    event ClaimRejected(JobId indexed job, GameId indexed game);
    event ClaimFinal(JobId indexed job, address indexed trainer, bytes32 finalStateRoot);
    event Credited(address indexed account, uint256 amount);
    event Withdrawn(address indexed account, uint256 amount);

    // ------------------------------------------------------------------------------------------------------------------ errors

    /// @notice A field of the spec or of the terms is out of its range; `field` is its name.
    error FieldOutOfRange(string field, uint256 value, uint256 minimum, uint256 maximum);
    error IntervalDoesNotDivideSteps(uint64 interval, uint64 steps);
    error CidLengthOutOfRange(uint256 length, uint256 maximum);
    error WrongPayment(uint256 sent, uint256 expected);
    error WrongJobStatus(JobId job, JobStatus actual, JobStatus expected);
    error WrongPhase(GameId game, Phase actual, Phase expected);
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
    /// @notice The root is not the one that the trainer committed to.
    error AnotherRootWasCommitted(Node given, Node committed);
    /// @notice A challenge must name a different root.
    error RootIsTheTrainers(Node root);
    error LiveGames(JobId job, uint64 count);
    /// @notice The side has already opened this leaf.
    error AlreadyOpened(GameId game, Side side);
    /// @notice Only levels above the last have a level below: `openLevel` there, `revealLeaf` at the last.
    error WrongLevel(GameId game, Level level);
    /// @notice The payload does not hash to the side's leaf.
    error WrongLeafPayload(Node computed, Node expected);
    /// @notice Before leaf 0 stands what was agreed above this level; it needs no proof.
    error WrongAgreedPayload(bytes32 given, bytes32 expected);
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
    /// @param checkpointRoot root over the steps / interval state roots
    /// @param finalStateRoot the last of them
    /// @param proof its siblings, from the leaf upwards
    function commit(
        JobId job,
        Node checkpointRoot,
        bytes32 finalStateRoot,
        bytes32[] calldata proof,
        string calldata logCid,
        string calldata modelCid
    ) external payable;

    /// @notice States in public that the caller's audit gave the same root. Moves no money; once per account.
    /// @param checkpointRoot the root that the auditor computed, which has to be the committed one
    function attest(JobId job, Node checkpointRoot) external;

    /// @notice Starts a game against the claim (`msg.value` = `terms.challengerBond`). The challenger's clock starts at once.
    /// @param checkpointRoot the root that the challenger computed
    function challenge(JobId job, Node checkpointRoot) external payable returns (GameId game);

    /// @notice Pays the trainer, strictly after the challenge deadline and with no live game. Anyone may send it.
    function finalize(JobId job) external;

    // --------------------------------------------------------------------------------------------------------------- the game

    /// @notice The next move of the search, on behalf of the side whose turn it is. Hashes force it, so anyone may send it.
    /// @param opened children of that side's node at the present place
    /// @param next children of that side's node one level below, in the leftmost half that differs; zero when that is a leaf
    function bisect(GameId game, Children calldata opened, Children calldata next) external;

    /// @notice Opens the disputed leaf of a level above the last, and the side's root for the level below. Only that side's party.
    function openLevel(GameId game, Side side, LeafOpening calldata leaf, NextRoot calldata next) external;

    /// @notice Opens the disputed leaf of the last level. Hashes force it, so anyone may send it.
    function revealLeaf(GameId game, Side side, LeafOpening calldata leaf) external;

    /// @notice The referee's verdict: the state root after the disputed step, re-executed from the agreed state.
    function adjudicate(GameId game, bytes32 stateRoot) external;

    /// @notice Ends a game in which a clock has run out. Anyone may send it, at any time after; the outcome does not depend on when.
    function claimTimeout(GameId game) external;

    /// @notice Returns the bond of a challenger whose game became void because another game rejected the claim. Anyone may send it.
    function releaseBond(GameId game) external;

    /// @notice Pays out everything credited to the caller.
    function withdraw() external returns (uint256 amount);

    // ------------------------------------------------------------------------------------------------------------------- views

    function getJob(JobId job) external view returns (JobView memory);

    function getGame(GameId game) external view returns (GameView memory);

    /// @notice Games of a job in the order in which they started, `limit` of them at most, from `offset`.
    function gamesOf(JobId job, uint256 offset, uint256 limit) external view returns (GameId[] memory);

    /// @notice Jobs ever posted; their ids are 1 to this.
    function jobCount() external view returns (uint256);

    /// @notice Games ever started; their ids are 1 to this.
    function gameCount() external view returns (uint256);

    /// @notice What `withdraw` would pay to the account.
    function creditOf(address account) external view returns (uint256);

    function hasAttested(JobId job, address auditor) external view returns (bool);

    /// @notice keccak256(abi.encode(spec)).
    function hashSpec(TrainingSpec calldata spec) external pure returns (bytes32);
}
