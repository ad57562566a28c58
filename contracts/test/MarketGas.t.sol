// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {GameId, JobId} from "../src/Types.sol";
import {Node} from "../src/Merkle.sol";
import {Timestamp} from "../src/Time.sol";
import {Market} from "./support/Market.sol";
import {Run} from "./support/Runs.sol";

/// @notice What audits cost as transactions of their own (21,000 and the call data included), an attestation with addresses of 59 bytes.
/// forge-config: default.isolate = true
contract MarketGasTest is Market {
    string private constant ADDRESS = "bafybeigdyrzt5sfp7udm7hu76uh7y26nf3efuylqabf3oclgtqy55fbzdi";

    Run private _honest;
    Run private _wrong;

    function setUp() public override {
        super.setUp();
        _honest = honestRun(512, 16);
        _wrong = wrongRun(512, 16, 261, "wrong");
    }

    function used(string memory name) private {
        vm.snapshotGasLastCall(name);
    }

    function test_gasOfOpenAudits_andOfAnAppeal() public {
        JobId job = postMarket(_wrong);
        used("postJob");
        commitRun(job, _wrong);
        attestBy(job, second);
        (bytes32 hash, Node root, uint128 bond) = (hashOf(job), claimedIn(job), bondOf(job));
        vm.prank(third);
        game.attest{value: bond}(job, hash, root, ADDRESS, ADDRESS, ANY_PLACE);
        used("attest");
        GameId verdict = challengeRun(job, auditor, _honest);
        play(verdict, _wrong, _honest);
        GameId id = appealBy(job, second);
        used("appeal");
        later(ALLOWANCE + 1);
        // The challenger begins, so it is the winner that is silent.
        game.claimTimeout(id);
        used("claimTimeout (overturned)");
        game.collect(job, third);
        used("collect");
    }

    function test_gasOfAVerdictThatIsUpheld_andOfAClaimThatIsFinal() public {
        JobId job = postMarket(_wrong);
        commitRun(job, _wrong);
        attestBy(job, second);
        play(challengeRun(job, auditor, _honest), _wrong, _honest);
        vm.warp(Timestamp.unwrap(game.getJob(job).audits.appealDeadline) + 1);
        game.finalize(job);
        used("finalize (upheld)");
        job = postMarket(_honest);
        commitRun(job, _honest);
        attestBy(job, second);
        later(CHALLENGE_WINDOW + 1);
        game.finalize(job);
        used("finalize (final)");
    }

    function test_gasOfBlindAudits() public {
        blind = true;
        JobId job = postMarket(_wrong);
        sealClaim(job, _wrong);
        used("sealClaim");
        sealAudit(job, auditor, _honest);
        used("sealAudit");
        bytes32 seal = auditSeal(job, auditor, rootOf(_honest));
        vm.prank(auditor);
        game.replaceSeal(job, seal);
        used("replaceSeal");
        sealAudit(job, second, _wrong);
        later(AUDIT_WINDOW + 1);
        openClaim(job, _wrong);
        used("openClaim (32 checkpoints)");
        openAudit(job, auditor, _honest);
        used("openAudit (challenge)");
        openAudit(job, second, _wrong);
        used("openAudit (attestation)");
        later(OPENING_WINDOW + 1);
        game.startGame(job);
        used("startGame");
    }
}
