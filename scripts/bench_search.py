"""Gas of searches with moves of one to six levels, which says how many `Bisections.LEVELS` are best.

    .venv/bin/python scripts/bench_search.py

The contract's own library, compiled once for each number of levels into a harness that touches about as many words of
storage in a move as the game does, searches trees as deep as those of scripts/bench_dispute.py on the embedded chain.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from hashlib import sha256
from itertools import count
from pathlib import Path

from eth_abi.abi import encode
from eth_utils.crypto import keccak
from roundlog.commitments import MerkleTree
from tiebreak.devnet.embedded import embedded_node
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender

CONTRACTS = Path(__file__).resolve().parent.parent / "contracts"
BISECTION = "game/Bisection.sol"
DEPTHS = (13, 4, 14, 5, 6)
"""Checkpoints, steps, a trace, chunks and segments."""

HARNESS = """
pragma solidity 0.8.37;
import {Bisections, Descent, Search, Side} from "./game/Bisection.sol";
import {Node} from "./Merkle.sol";
contract Harness {
    using Bisections for Search;
    event Bisected(uint256 indexed game, uint256 indexed level, uint256 indexed mover, uint64 a, uint64 b, Node[] row);
    Search private _search;
    uint256 private _clocks = 1;
    uint256 private _phase = 1;
    uint256 private _status = 1;
    function begin(Node root, bytes32 row, uint8 height) external {
        _search.begin(Side.CHALLENGER, root, row, height);
    }
    function advance(Descent calldata move) external {
        require(_phase != 0 && _status != 0);
        uint64 index = _search.index;
        _search.advance(move);
        ++_clocks;
        emit Bisected(1, 1, 1, index, _search.index, move.next);
    }
}
"""


def compiled(levels: int) -> bytes:
    """Creation code of the harness with moves of so many levels."""
    sources = {name: (CONTRACTS / "src" / name).read_text() for name in (BISECTION, "Merkle.sol")}
    changed = sources[BISECTION].replace("LEVELS = 4;", f"LEVELS = {levels};")
    assert levels == 4 or changed != sources[BISECTION]
    texts = {**sources, BISECTION: changed, "Harness.sol": HARNESS}
    request = {
        "language": "Solidity",
        "sources": {name: {"content": text} for name, text in texts.items()},
        "settings": {
            "optimizer": {"enabled": True, "runs": 200},
            "evmVersion": "prague",
            "outputSelection": {"Harness.sol": {"Harness": ["evm.bytecode.object"]}},
        },
    }
    compiler = [str(CONTRACTS / "tools" / "solc"), "--standard-json"]
    answer = subprocess.run(compiler, input=json.dumps(request), capture_output=True, text=True, check=True).stdout
    harness = json.loads(answer[answer.index("{") :])["contracts"]["Harness.sol"]["Harness"]
    return bytes.fromhex(harness["evm"]["bytecode"]["object"])


def row(tree: MerkleTree, height: int, index: int, stride: int) -> list[bytes]:
    return [tree.node(height - stride, (index << stride) + i) for i in range(1 << stride)] if height else []


def searched(sender: Sender, levels: int) -> list[tuple[int, int]]:
    """Moves and gas of a search of each depth."""
    contract = sender.send(None, compiled(levels)).contract
    found = []
    for depth in DEPTHS:
        leaves = [sha256(b"%d" % i).digest() for i in range(1 << depth)]
        first = len(leaves) * 5 // 7
        others = [sha256(b"other %d" % i).digest() if i >= first else leaf for i, leaf in enumerate(leaves)]
        trees = MerkleTree(leaves), MerkleTree(others)

        def stride(height: int) -> int:
            return -(-height // -(-height // levels)) if height else 0

        height, index, shown = depth, 0, row(trees[0], depth, 0, stride(depth))
        begun = encode(["bytes32", "bytes32", "uint8"], [trees[1].root, keccak(b"".join(shown)), depth])
        sender.send(contract, keccak(text="begin(bytes32,bytes32,uint8)")[:4] + begun)
        gas = 0
        for move in count(1):
            mover, below = trees[move % 2], height - stride(height)
            mine = row(mover, height, index, stride(height))
            index = (index << stride(height)) + next(i for i, node in enumerate(mine) if node != shown[i])
            after = row(mover, below, index, stride(below))
            sent = encode(["(bytes32[],bytes32[],bytes32[])"], [(mine, shown, after)])
            gas += sender.send(contract, keccak(text="advance((bytes32[],bytes32[],bytes32[]))")[:4] + sent).gas_used
            height, shown = below, after
            if not height:
                break
        assert index == first
        found.append((move, gas))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", type=int, default=6, help="the most that are tried")
    most = parser.parse_args().levels
    sender = Sender(embedded_node(), devnet_account(0))
    print(f"| levels | {' | '.join(f'depth {depth}' for depth in DEPTHS)} | all |\n" + "|---" * (len(DEPTHS) + 2) + "|")
    for levels in range(1, most + 1):
        found = searched(sender, levels)
        total = sum(moves for moves, _ in found), sum(gas for _, gas in found)
        print(f"| {levels} | " + " | ".join(f"{moves}: {gas:,}" for moves, gas in [*found, total]) + " |", flush=True)


if __name__ == "__main__":
    main()
