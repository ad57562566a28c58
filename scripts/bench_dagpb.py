"""Compares the client's dag-pb codec with the same codec over Google's protobuf runtime: time and import.

    .venv/bin/pip install --target build/protobuf protobuf
    PYTHONPATH=build/protobuf .venv/bin/python scripts/bench_dagpb.py

Microseconds, the best of 50, both in turns; SHA-256 of the block is what a reader pays in any case.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from typing import Any

from tiebreak.store import dagpb
from tiebreak.store.dag_builder import CHUNK, LINKS
from tiebreak.store.dagpb import FILE, Cid, Link, UnixFsNode

ROUNDS = 50


def messages() -> tuple[Any, Any, Any]:
    """The classes of PBNode, PBLink and UnixFS's Data, from their descriptors."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="unixfs.proto", syntax="proto2")
    number, octets, message = field.TYPE_UINT64, field.TYPE_BYTES, field.TYPE_MESSAGE
    once, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    shapes = {
        "PBLink": [("Hash", octets, once), ("Name", octets, once), ("Tsize", number, once)],
        "PBNode": [("Data", octets, once), ("Links", message, many)],
        "Data": [
            *(("Type", number, once), ("Data", octets, once), ("filesize", number, once)),
            *(("blocksizes", number, many), ("hashType", number, once), ("fanout", number, once)),
        ],
    }
    for name, fields in shapes.items():
        shape = file.message_type.add(name=name)
        for index, (field_name, kind, label) in enumerate(fields, 1):
            of = {"type_name": ".PBLink"} if kind == message else {}
            shape.field.add(name=field_name, number=index, type=kind, label=label, **of)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    node, link, data = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in ("PBNode", "PBLink", "Data")
    )
    return node, link, data


class ProtobufCodec:
    """The codec over protobuf; it accepts one encoding as well, by encoding again."""

    def __init__(self) -> None:
        self._node, self._link, self._data = messages()

    def encode(self, node: UnixFsNode) -> bytes:
        record = self._data(Type=node.kind, blocksizes=node.block_sizes)
        if node.data is not None:
            record.Data = node.data
        if node.file_size is not None:
            record.filesize = node.file_size
        links = [
            self._link(Hash=link.cid.to_bytes(), Name=link.name.encode(), Tsize=link.total_size) for link in node.links
        ]
        # In two messages, because dag-pb has field 2 before field 1.
        head: bytes = self._node(Links=links).SerializeToString()
        tail: bytes = self._node(Data=record.SerializeToString()).SerializeToString()
        return head + tail

    def decode(self, block: bytes) -> UnixFsNode:
        node = self._node.FromString(block)
        record = self._data.FromString(node.Data)
        links = tuple(Link(Cid.from_bytes(link.Hash), link.Name.decode(), link.Tsize) for link in node.Links)
        data = record.Data if record.HasField("Data") else None
        size = record.filesize if record.HasField("filesize") else None
        found = UnixFsNode(record.Type, data, size, tuple(record.blocksizes), links)
        if self.encode(found) != block:
            raise ValueError("not canonical")
        return found


def best(*actions: Callable[[], object]) -> list[float]:
    """Microseconds of each action, the best of `ROUNDS` rounds in which they take turns."""
    times = [float("inf")] * len(actions)
    for _ in range(ROUNDS):
        for place, action in enumerate(actions):
            start = time.perf_counter()
            action()
            times[place] = min(times[place], 1e6 * (time.perf_counter() - start))
    return times


def main() -> None:
    start = time.perf_counter()
    protobuf = ProtobufCodec()
    print(f"import of protobuf: {1e3 * (time.perf_counter() - start):.0f} ms")
    links = tuple(Link(Cid.of(bytes([i])), "", CHUNK + 14) for i in range(LINKS))
    blocks = {
        "leaf of 256 KiB": UnixFsNode(FILE, os.urandom(CHUNK), CHUNK),
        "174 links": UnixFsNode(FILE, None, LINKS * CHUNK, (CHUNK,) * LINKS, links),
    }
    print(f"{'block':16} {'encode':>8} {'protobuf':>9} {'decode':>8} {'protobuf':>9} {'SHA-256':>8}")
    for name, node in blocks.items():
        block = dagpb.encode(node)
        assert protobuf.encode(node) == block and protobuf.decode(block) == node
        times = best(
            lambda node=node: dagpb.encode(node),  # type: ignore[misc]
            lambda node=node: protobuf.encode(node),  # type: ignore[misc]
            lambda block=block: dagpb.decode(block, "a block"),  # type: ignore[misc]
            lambda block=block: protobuf.decode(block),  # type: ignore[misc]
            lambda block=block: hashlib.sha256(block).digest(),  # type: ignore[misc]
        )
        print(f"{name:16} {times[0]:8.0f} {times[1]:9.0f} {times[2]:8.0f} {times[3]:9.0f} {times[4]:8.0f}")


if __name__ == "__main__":
    main()
