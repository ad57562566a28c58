// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {ChunkOpening, Openings, Tensor} from "../../src/adjudication/Openings.sol";
import {DType} from "../../src/adjudication/Descriptor.sol";
import {Binary32} from "../../src/arithmetic/Binary32.sol";
import {Elementary} from "../../src/arithmetic/Elementary.sol";
import {Accumulator, ExactSum, Total} from "../../src/arithmetic/ExactSum.sol";
import {Philox} from "../../src/arithmetic/Philox.sol";
import {Float32, Rounding} from "../../src/arithmetic/Rounding.sol";
import {SwapOrNot} from "../../src/arithmetic/SwapOrNot.sol";
import {GroupRule, TensorCore} from "../../src/arithmetic/TensorCore.sol";
import {Test} from "../support/Test.sol";
import {Tree, Trees} from "../support/Trees.sol";

/// @notice Each function does one thing and tells what it cost, so that neither call data nor dispatch is in the figure.
contract GasHarness {
    using ExactSum for Accumulator;
    using ExactSum for Total;

    Float32 private constant A = Float32.wrap(0x40490FDB);
    Float32 private constant B = Float32.wrap(0xBF2DF854);

    function scalars() external view returns (uint256[8] memory gas) {
        Float32 sink;
        bool flag;
        uint256 start = gasleft();
        sink = Binary32.add(A, B, Rounding.FULL_BITS);
        (gas[0], start) = (start - gasleft(), gasleft());
        sink = Binary32.sub(sink, B, Rounding.FULL_BITS);
        (gas[1], start) = (start - gasleft(), gasleft());
        sink = Binary32.mul(sink, B, Rounding.FULL_BITS);
        (gas[2], start) = (start - gasleft(), gasleft());
        sink = Binary32.div(sink, B, Rounding.FULL_BITS);
        (gas[3], start) = (start - gasleft(), gasleft());
        sink = Binary32.sqrt(sink, Rounding.FULL_BITS);
        (gas[4], start) = (start - gasleft(), gasleft());
        sink = Binary32.floor(sink);
        (gas[5], start) = (start - gasleft(), gasleft());
        sink = Binary32.maximum(sink, B);
        (gas[6], start) = (start - gasleft(), gasleft());
        flag = Binary32.lt(sink, B);
        gas[7] = start - gasleft();
        require(!flag, "3 is not below -0.7");
    }

    function term(uint256 a, uint256 b) external view returns (uint256 perTerm, uint256 rounding) {
        Accumulator memory sum;
        uint256 start = gasleft();
        for (uint256 i = 0; i < 256; ++i) {
            sum.addProduct(a, b);
        }
        (perTerm, start) = ((start - gasleft()) / 256, gasleft());
        Float32 result = sum.total().rounded(32);
        rounding = start - gasleft();
        require(Float32.unwrap(result) != 0, "a sum");
    }

    function elementary(uint8 code) external view returns (uint256 gas) {
        gas = gasleft();
        (, bool decided) = Elementary.evaluate(code, 0x40490FDB, 32);
        gas -= gasleft();
        require(decided, "decided");
    }

    /// @dev Every term counts and is negative, and the result has bits to cut off: the longest way.
    function group() external view returns (uint256 gas) {
        uint256[] memory a = new uint256[](16);
        uint256[] memory b = new uint256[](16);
        for (uint256 i = 0; i < 16; ++i) {
            (a[i], b[i]) = (0xBFFF0000 + (i << 23), 0x3FFF0000 + (i << 23));
        }
        gas = gasleft();
        (uint32 pattern, bool hasValue) = TensorCore.group(GroupRule(25, 16, 1, false), 0xBFFFFFFF, a, b);
        gas -= gasleft();
        require(hasValue && pattern > Rounding.SIGN, "a negative number");
    }

    function random() external view returns (uint256 word, uint256 row) {
        uint256 start = gasleft();
        Philox.word(7, 3, 11, 12345);
        (word, start) = (start - gasleft(), gasleft());
        SwapOrNot.rowOfPosition(7, 1_000_000, 50_000);
        row = start - gasleft();
    }

    function opening(ChunkOpening[] calldata openings, Tensor[] calldata tensors) external view returns (uint256 gas) {
        Tensor[] memory copied = tensors;
        gas = gasleft();
        Openings.check(openings, copied, 1024, false);
        gas -= gasleft();
    }
}

contract ArithmeticGasTest is Test {
    GasHarness private _harness;

    function setUp() public {
        _harness = new GasHarness();
    }

    function record(string memory name, uint256 gas) private {
        vm.snapshotValue("Arithmetic", name, gas);
    }

    function test_gasOfArithmetic() public {
        string[8] memory names = ["add", "sub", "mul", "div", "sqrt", "floor", "maximum", "lt"];
        uint256[8] memory scalars = _harness.scalars();
        for (uint256 i = 0; i < names.length; ++i) {
            record(names[i], scalars[i]);
        }
        (uint256 term, uint256 rounding) = _harness.term(0x40490FDB, 0xBF2DF854);
        vm.assertLe(term, 400, "a term of a sum");
        record("term of a sum", term);
        record("rounding of a sum", rounding);
        string[8] memory functions = ["exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos"];
        for (uint8 code = 0; code < functions.length; ++code) {
            record(functions[code], _harness.elementary(code));
        }
        uint256 group = _harness.group();
        vm.assertLe(group, 35_000, "a group of a tensor core");
        record("group of a tensor core", group);
        (uint256 word, uint256 row) = _harness.random();
        record("Philox word", word);
        record("data row (90 rounds)", row);
    }

    /// @dev A chunk of a tensor of 1 MiB: 10 siblings.
    function test_gasOfAnOpening() public {
        bytes[] memory chunks = new bytes[](1024);
        for (uint256 i = 0; i < chunks.length; ++i) {
            chunks[i] = new bytes(1024);
        }
        Tree memory tree = Trees.buildBytes(chunks);
        ChunkOpening[] memory openings = new ChunkOpening[](1);
        openings[0] = ChunkOpening(0, 777, chunks[777], Trees.proof(tree, 777));
        Tensor[] memory tensors = new Tensor[](1);
        tensors[0] = Tensor(Trees.root(tree), DType.F32, 1024 * 256, 0);
        record("chunk opening (1 KiB, 10 siblings)", _harness.opening(openings, tensors));
    }
}
