// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Merkle, Node} from "../src/Merkle.sol";
import {Test} from "./support/Test.sol";
import {Tree, Trees} from "./support/Trees.sol";

contract MerkleHarness {
    function climb(Node start, uint64 index, uint64 count, bytes32[] calldata siblings) external pure returns (Node root) {
        return Merkle.climb(start, index, count, siblings);
    }

    function fold(Node[] calldata row) external view returns (Node) {
        return Merkle.fold(row);
    }

    function requireLeaf(Node root, bytes32 payload, uint64 index, uint64 count, bytes32[] calldata siblings) external pure {
        Merkle.requireLeaf(root, payload, index, count, siblings);
    }
}

contract MerkleTest is Test {
    MerkleHarness private _merkle;

    function setUp() public {
        _merkle = new MerkleHarness();
    }

    function test_pad_isTheHashOfItsOwnDomain() public pure {
        vm.assertEq(Node.unwrap(Merkle.PAD), sha256(hex"02"), "PAD");
    }

    function test_depth_isTheCeilingOfTheLogarithm() public pure {
        for (uint64 count = 0; count <= 1025; ++count) {
            vm.assertEq(uint256(1) << Merkle.depth(count), Trees.width(count), "2^depth");
        }
        vm.assertEq(Merkle.depth(1 << 40), 40, "2^40");
        vm.assertEq(Merkle.depth((1 << 40) + 1), 41, "2^40 + 1");
        vm.assertEq(Merkle.depth(type(uint64).max), 64, "2^64 - 1");
    }

    function test_treesSharedWithPython_haveTheSameRootsAndProofs() public view {
        string memory json = vm.readFile("tests/vectors/merkle.json");
        uint256 trees = 0;
        for (; vm.keyExistsJson(json, string.concat(".trees[", vm.toString(trees), "]")); ++trees) {
            this.checkSharedTree(json, string.concat(".trees[", vm.toString(trees), "]"));
        }
        vm.assertGt(trees, 5, "the file holds trees");
    }

    function checkSharedTree(string calldata json, string calldata key) external view {
        bytes[] memory payloads = vm.parseJsonBytesArray(json, string.concat(key, ".payloads"));
        bytes32 root = vm.parseJsonBytes32(json, string.concat(key, ".root"));
        uint64 count = uint64(payloads.length);
        vm.assertEq(Merkle.depth(count), vm.parseJsonUint(json, string.concat(key, ".depth")), "depth");
        vm.assertEq(Trees.root(Trees.buildBytes(payloads)), root, "the tests' own trees");
        for (uint64 i = 0; i < count; ++i) {
            string memory proofKey = string.concat(key, ".proofs[", vm.toString(i), "]");
            bytes32[] memory proof = vm.parseJsonBytes32Array(json, proofKey);
            Node computed = _merkle.climb(Merkle.leafOfBytes(payloads[i]), i, count, proof);
            vm.assertEq(Node.unwrap(computed), root, proofKey);
        }
    }

    function test_tensorRootsSharedWithPython_areTreesOverChunksOf1024Bytes() public view {
        string memory json = vm.readFile("tests/vectors/merkle.json");
        uint256 tensors = 0;
        for (; vm.keyExistsJson(json, string.concat(".tensors[", vm.toString(tensors), "]")); ++tensors) {
            this.checkSharedTensor(json, string.concat(".tensors[", vm.toString(tensors), "]"));
        }
        vm.assertGt(tensors, 3, "the file holds tensors");
    }

    function checkSharedTensor(string calldata json, string calldata key) external view {
        bytes memory data = vm.parseJsonBytes(json, string.concat(key, ".bytes"));
        uint64 count = data.length == 0 ? 1 : uint64((data.length + 1023) / 1024);
        bytes[] memory chunks = new bytes[](count);
        for (uint256 i = 0; i < count; ++i) {
            uint256 size = i + 1 < count ? 1024 : data.length - 1024 * (count - 1);
            chunks[i] = new bytes(size);
            for (uint256 j = 0; j < size; ++j) {
                chunks[i][j] = data[1024 * i + j];
            }
        }
        Tree memory tree = Trees.buildBytes(chunks);
        bytes32 root = vm.parseJsonBytes32(json, string.concat(key, ".root"));
        vm.assertEq(Trees.root(tree), root, key);
        for (uint64 i = 0; i < count; ++i) {
            Node computed = _merkle.climb(Merkle.leafOfBytes(chunks[i]), i, count, Trees.proof(tree, i));
            vm.assertEq(Node.unwrap(computed), root, "proof of a chunk");
        }
    }

    function testFuzz_everyLeafOfAnyTree_isProved_andNoOther(uint256 count, uint256 index, bytes32 seed) public view {
        count = bound(count, 1, 70);
        index = bound(index, 0, count - 1);
        bytes32[] memory payloads = new bytes32[](count);
        for (uint256 i = 0; i < count; ++i) {
            payloads[i] = keccak256(abi.encode(seed, i));
        }
        Tree memory tree = Trees.build(payloads);
        _merkle.requireLeaf(Node.wrap(Trees.root(tree)), payloads[index], uint64(index), uint64(count), Trees.proof(tree, index));
        for (uint256 i = 0; i < count; ++i) {
            if (i == index) continue;
            try _merkle.requireLeaf(
                Node.wrap(Trees.root(tree)), payloads[index], uint64(i), uint64(count), Trees.proof(tree, index)
            ) {
                revert("a proof holds at one index only");
            } catch {}
        }
    }

    function four() private pure returns (bytes32[] memory payloads, Tree memory tree, Node root) {
        payloads = new bytes32[](4);
        for (uint256 i = 0; i < 4; ++i) {
            payloads[i] = bytes32(i + 1);
        }
        tree = Trees.build(payloads);
        root = Node.wrap(Trees.root(tree));
    }

    function test_climb_leadsToTheRoot_ofATreeOfOneLeafAtOnce() public view {
        (bytes32[] memory payloads, Tree memory tree, Node root) = four();
        vm.assertTrue(_merkle.climb(Merkle.leaf(payloads[3]), 3, 4, Trees.proof(tree, 3)) == root, "the root");
        Node only = Merkle.leaf(bytes32(uint256(9)));
        vm.assertTrue(_merkle.climb(only, 0, 1, new bytes32[](0)) == only, "the leaf is the root");
    }

    function test_everyRowOfATree_foldsToItsNode() public view {
        (, Tree memory tree, Node root) = four();
        for (uint256 row = 0; row < 2; ++row) {
            Node[] memory nodes = new Node[](tree.rows[row].length);
            for (uint256 i = 0; i < nodes.length; ++i) {
                nodes[i] = Node.wrap(tree.rows[row][i]);
            }
            vm.assertTrue(_merkle.fold(nodes) == root, "the root");
        }
    }

    function test_proofThatIsTooShort_reverts_soThatAnInnerNodeIsNoLeaf() public {
        (bytes32[] memory payloads, Tree memory tree, Node root) = four();
        bytes32[] memory short = new bytes32[](1);
        short[0] = tree.rows[1][1];
        vm.expectRevert(abi.encodeWithSelector(Merkle.WrongProofLength.selector, 1, 2));
        _merkle.requireLeaf(root, payloads[0], 0, 4, short);
    }

    function test_proofThatIsTooLong_reverts() public {
        (bytes32[] memory payloads,, Node root) = four();
        vm.expectRevert(abi.encodeWithSelector(Merkle.WrongProofLength.selector, 3, 2));
        _merkle.requireLeaf(root, payloads[0], 0, 4, new bytes32[](3));
    }

    function test_indexInThePadding_reverts_evenWithItsTrueSiblings() public {
        bytes32[] memory payloads = new bytes32[](3);
        Tree memory tree = Trees.build(payloads);
        vm.expectRevert(abi.encodeWithSelector(Merkle.LeafIndexOutOfRange.selector, uint64(3), uint64(3)));
        _merkle.climb(Merkle.PAD, 3, 3, Trees.proof(tree, 3));
    }

    function test_indexThatAliasesAnotherModuloTheWidth_reverts() public {
        (bytes32[] memory payloads, Tree memory tree, Node root) = four();
        vm.expectRevert(abi.encodeWithSelector(Merkle.LeafIndexOutOfRange.selector, uint64(4), uint64(4)));
        _merkle.requireLeaf(root, payloads[0], 4, 4, Trees.proof(tree, 0));
    }

    function test_innerNodeAsPayload_doesNotProve() public {
        (, Tree memory tree, Node root) = four();
        bytes32[] memory proof = new bytes32[](1);
        proof[0] = tree.rows[1][1];
        // Without domain separation the node above leaves 0 and 1 would pass as leaf 0 of a tree of two leaves.
        Node computed = _merkle.climb(Merkle.leaf(tree.rows[1][0]), 0, 2, proof);
        vm.expectRevert(abi.encodeWithSelector(Merkle.WrongProof.selector, Node.unwrap(computed), Node.unwrap(root)));
        _merkle.requireLeaf(root, tree.rows[1][0], 0, 2, proof);
    }

    function test_wrongPayload_reverts() public {
        (, Tree memory tree, Node root) = four();
        bytes32[] memory proof = Trees.proof(tree, 1);
        Node computed = _merkle.climb(Merkle.leaf(bytes32(uint256(77))), 1, 4, proof);
        vm.expectRevert(abi.encodeWithSelector(Merkle.WrongProof.selector, Node.unwrap(computed), Node.unwrap(root)));
        _merkle.requireLeaf(root, bytes32(uint256(77)), 1, 4, proof);
    }
}
