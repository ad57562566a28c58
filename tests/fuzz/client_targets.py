"""The client's readers: content identifiers, blocks and whole graphs of them, events and records of the contract, and
the answers of a node."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any, cast

from eth_abi.abi import encode
from eth_typing import ChecksumAddress
from tiebreak.contract.abi import ContractAbi
from tiebreak.rpc.answers import Log
from tiebreak.rpc.chain_errors import ChainError
from tiebreak.rpc.node import ChainNode
from tiebreak.rpc.transport import HttpTransport, Transport
from tiebreak.store.dag_reader import DagReader
from tiebreak.store.dagpb import DIRECTORY, FILE, RAW, Cid, Link, decode
from tiebreak.store.dagpb import UnixFsNode as Block
from tiebreak.store.dagpb import encode as encode_block
from tiebreak.store.store import blocks as blocks_below
from tiebreak.store.store_errors import ContentMissing, InvalidCid, MalformedContent, StoreError, UnsafeName

from tests.fuzz.mutations import canonical, change_bytes, change_json, change_words
from tests.fuzz.targets import Target

_ADDRESS = cast(ChecksumAddress, "0x" + "11" * 20)
_WORD = "0x" + "22" * 32


# Content.


def _read_cid(data: bytes) -> None:
    text = data.decode("latin1")
    cid = Cid.parse(text)
    assert str(cid) == text


def _read_block(data: bytes) -> None:
    assert encode_block(decode(data, "fuzzed")) == data


_LEAF = Block(FILE, b"abc", 3)
_LEAF_CID = Cid.of(encode_block(_LEAF))


def _block_seeds() -> list[bytes]:
    file = Block(FILE, None, 6, (3, 3), (Link(_LEAF_CID, "", 11), Link(_LEAF_CID, "", 11)))
    folder = Block(DIRECTORY, None, None, (), (Link(_LEAF_CID, "a", 11), Link(Cid.of(b"raw", RAW), "b", 3)))
    return [encode_block(node) for node in (_LEAF, file, folder, Block(DIRECTORY, None, None))]


_MOST_BYTES = 1000


def _graph(tree: Any) -> tuple[dict[Cid, bytes], Cid]:
    """Blocks with true identifiers from a list of [kind, content or null, size or null, sizes, links], where a link is
    [number of an earlier node, name, total size]; raises ValueError, TypeError and the like for anything else."""
    blocks: dict[Cid, bytes] = {}
    cids: list[Cid] = []
    for kind, content, size, sizes, links in tree[:64]:
        if kind == "raw":
            cid = Cid.of(content.encode(), RAW)
            blocks[cid] = content.encode()
        else:
            targets = [Link(cids[number], name, total) for number, name, total in links]
            node = Block(kind, None if content is None else content.encode(), size, tuple(sizes), tuple(targets))
            block = encode_block(node)
            cid = Cid.of(block)
            blocks[cid] = block
        cids.append(cid)
    return blocks, cids[-1]


class _NoGraph(ValueError):
    """The input describes no blocks."""


def _read_graph(data: bytes) -> None:
    try:
        numbers = json.loads(data, parse_int=lambda text: min(max(int(text), 0), 2**64 - 1))
        blocks, root = _graph(numbers)
    except (ValueError, TypeError, AttributeError, IndexError, KeyError, RecursionError, OverflowError):
        raise _NoGraph("no graph of blocks") from None
    fetched = 0

    def fetch(cid: Cid) -> bytes:
        nonlocal fetched
        fetched += 1
        assert fetched < 5000, "a graph of a few blocks is walked for ever"
        if cid not in blocks:
            raise ContentMissing(f"no block {cid}")
        return blocks[cid]

    assert len(list(blocks_below(fetch, root))) <= len(blocks)
    try:
        content = DagReader(fetch, root, _MOST_BYTES).read()
        assert len(content) <= _MOST_BYTES
    except (MalformedContent, StoreError):
        pass
    with tempfile.TemporaryDirectory(prefix="fuzz-") as room:
        DagReader(fetch, root, _MOST_BYTES).write_directory(Path(room) / "inside" / "content", _everything)
        outside = [path for path in Path(room).rglob("*") if "content" not in path.relative_to(room).parts]
        assert [path.name for path in outside] == ["inside"]
        assert sum(path.stat().st_size for path in Path(room).rglob("*") if path.is_file()) <= _MOST_BYTES
        shutil.rmtree(Path(room) / "inside")


def _everything(path: Path, names: Collection[str]) -> list[dict[str, int]]:
    """The plan of a reader who takes whatever there is."""
    return [dict.fromkeys(names, _MOST_BYTES)]


def _graph_seeds() -> list[bytes]:
    leaf = [FILE, "abc", 3, [], []]
    tree = [
        leaf,
        [FILE, None, 6, [3, 3], [[0, "", 11], [0, "", 11]]],
        ["raw", "xyz", None, [], []],
        [DIRECTORY, None, None, [], [[1, "file", 99], [2, "raw", 3]]],
    ]
    doubled: list[list[Any]] = [leaf]
    for depth in range(11):
        size = 3 << depth
        doubled.append([FILE, None, 2 * size, [size, size], [[depth, "", 11], [depth, "", 11]]])
    nested = [[DIRECTORY, None, None, [], []]]
    nested += [[DIRECTORY, None, None, [], [[i, "a", 9], [i, "b", 9]]] for i in range(12)]
    return [canonical(tree), canonical(doubled), canonical(nested)]


# The contract.


@cache
def _interface() -> ContractAbi:
    return ContractAbi.load("VerificationGame")


def _default(parameter: Any) -> Any:
    """A value of an ABI type; arrays have two items."""
    kind: str = parameter["type"]
    if kind.endswith("]"):
        item = {**parameter, "type": kind[: kind.rindex("[")]}
        count = kind[kind.rindex("[") + 1 : -1]
        return [_default(item) for _ in range(int(count or 2))]
    if kind == "tuple":
        return tuple(_default(item) for item in parameter["components"])
    return {"address": _ADDRESS, "bool": True, "string": "Qm", "bytes": b"chunk", "bytes32": bytes(32)}.get(kind, 1)


def _type(parameter: Any) -> str:
    kind: str = parameter["type"]
    if kind.startswith("tuple"):
        return "(" + ",".join(map(_type, parameter["components"])) + ")" + kind.removeprefix("tuple")
    return kind


def _encoded(parameters: list[Any]) -> bytes:
    return bytes(encode([_type(item) for item in parameters], [_default(item) for item in parameters]))


def _result_seeds() -> list[bytes]:
    return [
        name.encode() + b"\n" + _encoded(entry["outputs"]) for name, entry in sorted(_interface()._functions.items())
    ]


def _read_result(data: bytes) -> None:
    name, _, raw = data.partition(b"\n")
    function = name.decode("latin1")
    if len(_interface()._functions.get(function, {"outputs": []})["outputs"]) == 1:
        _interface().decode_result(function, raw)


def _change_result(data: bytes, rng: Any) -> bytes:
    name, _, raw = data.partition(b"\n")
    return name + b"\n" + rng.choice((change_words, change_bytes))(raw, rng)


def _event_seeds() -> list[bytes]:
    seeds = []
    for topic, entry in sorted(_interface()._events.items()):
        indexed = [item for item in entry["inputs"] if item["indexed"]]
        topics = [topic, *(_encoded([item]) for item in indexed)]
        seeds.append(b"".join(topics) + _encoded([item for item in entry["inputs"] if not item["indexed"]]))
    return seeds


def _read_event(data: bytes) -> None:
    """`data`: as many topics as the event with the first one has, then its data."""
    entry = _interface()._events.get(data[:32])
    count = 1 + sum(item["indexed"] for item in entry["inputs"]) if entry else 1
    topics = tuple(data[i : i + 32] for i in range(0, min(32 * count, len(data) - len(data) % 32), 32))
    log = Log(_ADDRESS, topics, data[32 * count :], 1, bytes(32), bytes(32), 0, None)
    event = _interface().decode_event(log)
    assert (event is None) == (entry is None)


def _read_revert(data: bytes) -> None:
    message = str(_interface().decode_error(data))
    assert message.isprintable() and len(message) < 2000


def _revert_seeds() -> list[bytes]:
    return [selector + _encoded(entry["inputs"]) for selector, entry in sorted(_interface()._errors.items())]


# A node.

_LOG = {
    "address": _ADDRESS,
    "topics": [_WORD],
    "data": "0x00",
    "blockNumber": "0x1",
    "blockHash": _WORD,
    "transactionHash": _WORD,
    "logIndex": "0x0",
}
_ANSWERS: dict[str, Any] = {
    "eth_chainId": "0x1",
    "eth_getBlockByNumber": {"number": "0x2", "hash": _WORD, "timestamp": "0x5", "baseFeePerGas": "0x7"},
    "eth_getBalance": "0xff",
    "eth_getCode": "0x6000",
    "eth_getTransactionCount": "0x3",
    "eth_maxPriorityFeePerGas": "0x1",
    "eth_call": "0x",
    "eth_estimateGas": "0x5208",
    "eth_sendRawTransaction": _WORD,
    "eth_getTransactionReceipt": {
        "transactionHash": _WORD,
        "blockNumber": "0x1",
        "blockHash": _WORD,
        "status": "0x1",
        "gasUsed": "0x5208",
        "effectiveGasPrice": "0x9",
        "contractAddress": None,
        "logs": [_LOG],
    },
    "eth_getLogs": [_LOG, {**_LOG, "logIndex": "0x1"}],
}


class _Scripted(Transport):
    """A transport that answers from a table, by the strict reader of the real one."""

    name = "scripted"

    def __init__(self, table: dict[str, Any]) -> None:
        super().__init__()
        self._table = table
        self._reader = HttpTransport("http://127.0.0.1:1")

    def request(self, method: str, params: list[object]) -> object:
        raw = json.dumps(self._table.get(method, {"jsonrpc": "2.0", "id": 1})).encode()
        return self._reader._result(method, 1, raw)


class _NoTable(ValueError):
    """The input is no table of answers."""


def _read_answers(data: bytes) -> None:
    try:
        table = json.loads(data)
    except (ValueError, RecursionError):
        raise _NoTable("no JSON") from None
    if not isinstance(table, dict):
        raise _NoTable("no table")
    node = ChainNode(_Scripted(table))
    refused: ChainError | None = None
    for ask in (
        lambda: node.chain_id,
        node.head,
        node.now,
        lambda: node.block(2),
        lambda: node.balance(_ADDRESS),
        lambda: node.code(_ADDRESS),
        lambda: node.nonce(_ADDRESS, pending=True),
        node.priority_fee,
        lambda: node.call(_ADDRESS, b""),
        lambda: node.estimate_gas(_ADDRESS, b"", sender=_ADDRESS),
        lambda: node.send_raw(b""),
        lambda: node.receipt(bytes.fromhex(_WORD[2:])),
        lambda: node.logs(_ADDRESS, from_block=0, to_block=10, topics=[bytes.fromhex(_WORD[2:])]),
    ):
        try:
            ask()
        except ChainError as error:
            refused = error
    if refused is not None:
        raise refused


def _answer_seeds() -> list[bytes]:
    wrapped = {method: {"jsonrpc": "2.0", "id": 1, "result": result} for method, result in _ANSWERS.items()}
    failure = {"jsonrpc": "2.0", "id": 1, "error": {"code": 3, "message": "reverted", "data": {"data": "0x08c379a0"}}}
    return [canonical(wrapped), canonical({**wrapped, "eth_call": failure, "eth_getLogs": failure})]


CLIENT = [
    Target(
        name="cid",
        seeds=lambda: [str(_LEAF_CID).encode(), str(Cid.of(b"raw", RAW)).encode()],
        read=_read_cid,
        refusals=(InvalidCid,),
    ),
    Target(
        name="block",
        seeds=_block_seeds,
        read=_read_block,
        refusals=(MalformedContent, UnsafeName, InvalidCid),
    ),
    Target(
        name="graph",
        seeds=_graph_seeds,
        read=_read_graph,
        refusals=(StoreError, _NoGraph),
        mutators=(change_json,),
        refused_seeds=2,
    ),
    Target(
        name="event",
        seeds=_event_seeds,
        read=_read_event,
        refusals=(ChainError,),
        mutators=(change_words, change_bytes),
    ),
    Target(
        name="result",
        seeds=_result_seeds,
        read=_read_result,
        refusals=(ChainError,),
        mutators=(_change_result,),
    ),
    Target(
        name="revert",
        seeds=_revert_seeds,
        read=_read_revert,
        refusals=(),
        mutators=(change_words, change_bytes),
    ),
    Target(
        name="answers",
        seeds=_answer_seeds,
        read=_read_answers,
        refusals=(ChainError, _NoTable),
        mutators=(change_json, change_json, change_bytes),
        refused_seeds=1,
    ),
]
