// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Finding, IAdjudicator, IFunctions, Outline, Partial, Question, Setting} from "../../src/adjudication/IAdjudicator.sol";
import {ChunkOpening} from "../../src/adjudication/Openings.sol";

/// @notice Checks everything like the real one, and has a finding of its own for elements and segments.
contract BentAdjudicator is IAdjudicator {
    IAdjudicator internal immutable real;
    Finding internal immutable finding;

    constructor(IAdjudicator real_, Finding finding_) {
        (real, finding) = (real_, finding_);
    }

    function functions() external view override returns (IFunctions) {
        return real.functions();
    }

    function outline(bytes calldata descriptor, uint32 chunkSize) external view override returns (Outline memory) {
        return real.outline(descriptor, chunkSize);
    }

    function compute(Setting calldata setting, Question calldata question, ChunkOpening[] calldata openings)
        external
        view
        virtual
        override
        returns (Finding, uint64 bits)
    {
        (, bits) = real.compute(setting, question, openings);
        return (finding, bits);
    }

    function reduceSegment(
        Setting calldata setting,
        Question calldata question,
        uint64 segment,
        Partial calldata before,
        ChunkOpening[] calldata openings
    ) external view override returns (Finding, Partial memory afterwards) {
        (, afterwards) = real.reduceSegment(setting, question, segment, before, openings);
        return (finding, afterwards);
    }

    function finish(bytes calldata descriptor, Partial calldata whole, uint8 roundingBits)
        external
        view
        override
        returns (Finding, uint64)
    {
        return real.finish(descriptor, whole, roundingBits);
    }
}

/// @notice Tells what it was asked: its bits are a hash of that.
contract EchoAdjudicator is BentAdjudicator {
    constructor(IAdjudicator real_) BentAdjudicator(real_, Finding.VALUE) {}

    function compute(Setting calldata setting, Question calldata question, ChunkOpening[] calldata openings)
        external
        pure
        override
        returns (Finding, uint64)
    {
        return (Finding.VALUE, digest(abi.encode(setting, question, openings)));
    }

    function digest(bytes memory asked) public pure returns (uint64) {
        return uint64(uint256(keccak256(asked)));
    }
}

/// @notice Anybody may change it; in a view nobody can.
contract Witness {
    uint256 public changes;

    function change() external {
        ++changes;
    }
}

/// @notice What a hostile one may try when it is asked for an element. It is no `IAdjudicator`, because Solidity would keep it to views.
contract HostileAdjudicator {
    enum Trick {
        REVERT,
        BURN,
        BOMB,
        SHORT_ANSWER,
        NO_SUCH_FINDING,
        CHANGE_SOMETHING
    }

    IAdjudicator private immutable _real;
    Trick private immutable _trick;
    Witness public immutable witness;

    error Refused();
    /// @notice What became of the change.
    error Changed(bool succeeded);

    constructor(IAdjudicator real, Trick trick) {
        (_real, _trick, witness) = (real, trick, new Witness());
    }

    function outline(bytes calldata descriptor, uint32 chunkSize) external view returns (Outline memory) {
        return _real.outline(descriptor, chunkSize);
    }

    function compute(Setting calldata, Question calldata, ChunkOpening[] calldata) external returns (Finding, uint64) {
        if (_trick == Trick.BURN) {
            assembly {
                invalid()
            }
        }
        if (_trick == Trick.BOMB) {
            assembly {
                revert(0, 1000000)
            }
        }
        if (_trick == Trick.SHORT_ANSWER) {
            assembly {
                return(0, 33)
            }
        }
        if (_trick == Trick.NO_SUCH_FINDING) {
            assembly {
                mstore(0, 3)
                mstore(32, 0)
                return(0, 64)
            }
        }
        if (_trick == Trick.CHANGE_SOMETHING) {
            (bool succeeded,) = address(witness).call(abi.encodeCall(Witness.change, ()));
            revert Changed(succeeded);
        }
        revert Refused();
    }
}
