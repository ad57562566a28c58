"""The Merkle scheme, against an oracle written from its definition, known answers and forged proofs."""

import json
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roundlog.commitments import PAD, CommitmentError, MerkleTree, leaf_hash, node_hash, verify

ROOT = Path(__file__).resolve().parents[2]
VECTORS = json.loads((ROOT / "tests" / "vectors" / "merkle.json").read_text())

payload_lists = st.lists(st.binary(max_size=40), max_size=20)


def oracle_levels(payloads: list[bytes]) -> list[list[bytes]]:
    """All levels, padding included, straight from the definition."""
    level = [sha256(b"\x00" + payload).digest() for payload in payloads]
    width = 1
    while width < len(payloads):
        width *= 2
    level += [sha256(b"\x02").digest()] * (width - len(level))
    levels = [level]
    while len(level) > 1:
        level = [sha256(b"\x01" + level[i] + level[i + 1]).digest() for i in range(0, len(level), 2)]
        levels.append(level)
    return levels


@given(payload_lists)
def test_every_node_of_a_tree_is_the_one_of_the_definition(payloads: list[bytes]) -> None:
    tree = MerkleTree(payloads)
    levels = oracle_levels(payloads)
    assert (tree.count, tree.depth, tree.root) == (len(payloads), len(levels) - 1, levels[-1][0])
    assert MerkleTree.of_leaf_hashes(levels[0][: len(payloads)]).root == tree.root
    assert [[tree.node(h, i) for i in range(len(level))] for h, level in enumerate(levels)] == levels


@given(payload_lists)
def test_the_proof_of_every_leaf_verifies_and_has_exactly_depth_siblings(payloads: list[bytes]) -> None:
    tree = MerkleTree(payloads)
    for i, payload in enumerate(payloads):
        assert len(tree.proof(i)) == tree.depth
        assert verify(tree.root, payload, i, tree.count, tree.proof(i))


@settings(max_examples=60)
@given(st.integers(1, 9), st.data())
def test_a_proof_verifies_for_no_other_index_count_depth_payload_or_root(count: int, data: st.DataObject) -> None:
    payloads = [bytes([i]) * 3 for i in range(count)]
    tree = MerkleTree(payloads)
    i = data.draw(st.integers(0, count - 1))
    proof = tree.proof(i)
    for other in range(-1, 17):
        assert verify(tree.root, payloads[i], other, count, proof) == (other == i)
    assert not verify(tree.root, payloads[i], i, count, [*proof, PAD])
    assert not verify(tree.root, payloads[i] + b"\x00", i, count, proof)
    assert not verify(tree.root[::-1], payloads[i], i, count, proof)
    assert not verify(tree.root[:31], payloads[i], i, count, proof)
    if proof:
        assert not verify(tree.root, payloads[i], i, count, proof[:-1])
        assert not verify(tree.root, payloads[i], i, count, [proof[0][:31], *proof[1:]])
        assert not verify(tree.root, payloads[i], i, 1 << (tree.depth + 1), proof)


def test_a_pad_leaf_is_not_a_leaf_of_any_payload() -> None:
    tree = MerkleTree([b"a", b"b", b"c"])
    assert tree.node(0, 3) == PAD
    assert not verify(tree.root, b"", 3, 4, [leaf_hash(b"c"), tree.node(1, 0)])
    with pytest.raises(CommitmentError, match="3 leaves has no leaf 3"):
        tree.proof(3)


def test_the_children_of_a_node_do_not_pass_as_the_payload_of_a_leaf() -> None:
    left, right = leaf_hash(b"a"), leaf_hash(b"b")
    root = MerkleTree([b"a", b"b"]).root
    assert node_hash(left, right) == root
    for prefix in (b"", b"\x01"):
        assert not verify(root, prefix + left + right, 0, 1, [])


def test_the_tree_without_leaves_is_the_pad_and_has_no_proof() -> None:
    tree = MerkleTree([])
    assert (tree.root, tree.depth, tree.count) == (PAD, 0, 0)
    assert not verify(tree.root, b"", 0, 0, [])


@pytest.mark.parametrize(("height", "index"), [(-1, 0), (3, 0), (0, 4), (2, 1), (1, -1)])
def test_a_node_outside_the_tree_is_refused(height: int, index: int) -> None:
    with pytest.raises(CommitmentError, match=f"no node {index} at height {height}"):
        MerkleTree([b"a", b"b", b"c"]).node(height, index)


@pytest.mark.parametrize("tree", VECTORS["trees"], ids=lambda tree: f"{len(tree['payloads'])} leaves")
def test_the_oracle_agrees_with_the_shared_vectors(tree: dict[str, list[str]]) -> None:
    payloads = [bytes.fromhex(payload[2:]) for payload in tree["payloads"]]
    levels = oracle_levels(payloads)
    assert tree["root"] == "0x" + levels[-1][0].hex()
    assert tree["proofs"] == [
        ["0x" + levels[h][(i >> h) ^ 1].hex() for h in range(len(levels) - 1)] for i in range(len(payloads))
    ]
