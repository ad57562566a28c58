"""Programs as canonical JSON: one text for one program, and a reader that trusts nothing.

The reader checks structure (types, order, references, sizes); whether an operator exists and whether the declared
type is the one that it computes is checked by `roundlog.operators.check`.
"""

from __future__ import annotations

from reprlib import repr as quoted  # a stranger's values are shown shortened and escaped

from roundlog.json_text import canonical_json, parse_json
from roundlog.program.model import Attribute, DType, Node, Program, ProgramError, TensorType

FORMAT = "tiebreak-program"
VERSION = 1
MAX_NODES = 1 << 18
MAX_TEXT_BYTES = 256 * MAX_NODES
MAX_ITEMS = 16 * MAX_NODES
"""Commas and opening brackets in a text: an operator has about twelve. Python makes up to 90 bytes of each, so that a
text of this many takes no more than 400 MB to parse, whatever it is."""
MAX_RANK = 16
MAX_ELEMENTS = 1 << 40
MAX_ATTRIBUTE_ITEMS = 1 << 16
_INT_LIMIT = 1 << 63


def to_json(program: Program) -> bytes:
    """The canonical text of a program. Raises ProgramError for one that is larger than anybody reads."""
    if len(program.nodes) > MAX_NODES:
        raise ProgramError(f"the program has {len(program.nodes)} operators, more than the {MAX_NODES} allowed")
    text = canonical_json(
        {
            "format": FORMAT,
            "version": VERSION,
            "batch_size": program.batch_size,
            "states": list(program.state_names),
            "data": list(program.data_names),
            "schedule": list(program.schedule_names),
            "nodes": [
                [n.op, list(n.inputs), dict(n.attributes), str(n.type.dtype), list(n.type.shape)] for n in program.nodes
            ],
            "sources": [n.source for n in program.nodes],
        }
    ).encode()
    _check_size(text)
    return text


def from_json(text: bytes) -> Program:
    """Read a program. Raises ProgramError, naming the node, for anything that is not exactly a program of this
    version in its canonical form."""
    _check_size(text)
    if not text.isascii():
        # Before anything is parsed: one wide character makes Python store all of them four times as wide.
        raise ProgramError("the program is not in canonical form: it is not ASCII")
    try:
        document = parse_json(text, only_integers=True)
    except ValueError as error:
        raise ProgramError(f"the program {error}") from None
    keys = {"format", "version", "batch_size", "states", "data", "schedule", "nodes", "sources"}
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ProgramError(f"this is not a program: its format is not {FORMAT!r}")
    if document.get("version") != VERSION:
        raise ProgramError(
            f"the program has version {quoted(document.get('version'))}, this reader knows {VERSION}: "
            "use a matching release"
        )
    if set(document) != keys:
        raise ProgramError(f"the program has the keys {quoted(sorted(document))}, expected {sorted(keys)}")
    raw_nodes, sources = document["nodes"], document["sources"]
    if not isinstance(raw_nodes, list) or not raw_nodes:
        raise ProgramError("the program has no operators")
    if len(raw_nodes) > MAX_NODES:
        raise ProgramError(f"the program has {len(raw_nodes)} operators, more than the {MAX_NODES} allowed")
    if not isinstance(sources, list) or len(sources) != len(raw_nodes):
        raise ProgramError("the program's source lines do not match its operators in number")
    program = Program(
        nodes=tuple(
            _node(index, raw, source) for index, (raw, source) in enumerate(zip(raw_nodes, sources, strict=True))
        ),
        state_names=_names(document["states"], "states"),
        data_names=_names(document["data"], "data"),
        schedule_names=_names(document["schedule"], "schedule"),
        batch_size=_integer(document["batch_size"], "batch_size", low=1),
    )
    _check_slots(program)
    if to_json(program) != text:
        raise ProgramError("the program is not in canonical form: write it with roundlog's own writer")
    return program


def _check_size(text: bytes) -> None:
    if len(text) > MAX_TEXT_BYTES:
        raise ProgramError(f"the program has {len(text)} bytes, more than the {MAX_TEXT_BYTES} that are read")
    items = sum(text.count(mark) for mark in (b",", b"[", b"{"))
    if items > MAX_ITEMS:
        raise ProgramError(f"the program has {items} items, more than {MAX_NODES} operators can need")


def _integer(value: object, what: str, *, low: int = -_INT_LIMIT, high: int = _INT_LIMIT - 1) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ProgramError(f"{what} is {quoted(value)}, expected an integer from {low} to {high}")
    return value


def _names(value: object, what: str) -> tuple[str, ...]:
    # Names and source lines get printed: no line breaks, terminal codes or lone surrogates.
    if not isinstance(value, list) or not all(
        isinstance(name, str) and 0 < len(name) <= 512 and name.isprintable() for name in value
    ):
        raise ProgramError(f"{what} is not a list of printable names")
    if len(set(value)) != len(value):
        raise ProgramError(f"{what} holds a name twice")
    return tuple(value)


def _attribute(index: int, name: str, value: object) -> Attribute:
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, list):
        if len(value) > MAX_ATTRIBUTE_ITEMS:
            raise ProgramError(f"attribute {name} of operator {index} has {len(value)} items")
        return tuple(_integer(item, f"an item of attribute {name} of operator {index}") for item in value)
    return _integer(value, f"attribute {name} of operator {index}")


def _node(index: int, raw: object, source: object) -> Node:
    if not isinstance(raw, list) or len(raw) != 5:
        raise ProgramError(f"operator {index} is not a list of op, inputs, attributes, dtype, shape")
    op, inputs, attributes, dtype, shape = raw
    if not isinstance(op, str) or not op.isidentifier():
        raise ProgramError(f"operator {index} has no name")
    if not isinstance(inputs, list) or not isinstance(attributes, dict) or not isinstance(shape, list):
        raise ProgramError(f"operator {index} ({op}) is malformed")
    if not all(name.isidentifier() for name in attributes):
        raise ProgramError(f"operator {index} ({op}) has an attribute without a name")
    for value in inputs:
        _integer(value, f"an input of operator {index} ({op})", low=0)
        if value >= index:
            raise ProgramError(f"operator {index} ({op}) reads value {value}, which is not computed before it")
    if dtype not in [str(d) for d in DType]:
        raise ProgramError(f"operator {index} ({op}) has the unknown dtype {quoted(dtype)}")
    if len(shape) > MAX_RANK:
        raise ProgramError(f"operator {index} ({op}) has {len(shape)} axes, more than {MAX_RANK}")
    sizes = tuple(_integer(size, f"an axis of operator {index} ({op})", low=0) for size in shape)
    kind = TensorType(sizes, DType(dtype))
    if kind.numel > MAX_ELEMENTS:
        raise ProgramError(f"operator {index} ({op}) declares {kind.numel} elements, more than {MAX_ELEMENTS}")
    if not isinstance(source, str) or len(source) > 1024 or not source.isprintable():
        raise ProgramError(f"operator {index} ({op}) has no printable source line")
    return Node(
        op=op,
        inputs=tuple(inputs),
        attributes={name: _attribute(index, name, value) for name, value in attributes.items()},
        type=kind,
        source=source,
    )


def _check_slots(program: Program) -> None:
    """Check of a program's slots: every slot has exactly one reader node, every state slot exactly one `store` of the
    same type, all `store` nodes stand in slot order at the end, and exactly one scalar `loss` stands before them."""
    for op, names in (("state", program.state_names), ("data", program.data_names)):
        slots = [node.attributes.get("slot") for node in program.nodes if node.op == op]
        numbers = [slot for slot in slots if type(slot) is int]
        if len(numbers) != len(slots) or sorted(numbers) != list(range(len(names))):
            raise ProgramError(f"the program names {len(names)} {op} slots, but its operators read {quoted(slots)}")
    columns = len(program.schedule_names)
    for index, node in enumerate(program.nodes):
        if node.op == "schedule":
            _integer(
                node.attributes.get("slot"),
                f"the slot of operator {index} (schedule)",
                low=0,
                high=columns - 1,
            )
    count = len(program.state_names)
    tail = program.nodes[len(program.nodes) - count :] if count else ()
    if [node.op for node in program.nodes].count("store") != count or any(
        node.op != "store" or type(node.attributes.get("slot")) is not int or node.attributes["slot"] != slot
        for slot, node in enumerate(tail)
    ):
        raise ProgramError("the program does not end with one store operator for every state slot, in order")
    for name, before, after in zip(program.state_names, program.states.values(), tail, strict=True):
        if before != after.type:
            raise ProgramError(f"state {name} is loaded as {before} and stored as {after.type}")
    losses = [node for node in program.nodes if node.op == "loss"]
    if len(losses) != 1 or losses[0].type != TensorType((), DType.F32):
        raise ProgramError("the program does not have exactly one scalar FP32 loss")
    for name, kind in program.data.items():
        if not kind.shape or kind.shape[0] != program.batch_size:
            raise ProgramError(f"data field {name} is {kind}, its first axis is not the batch of {program.batch_size}")
