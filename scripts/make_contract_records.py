"""Writes enums.py, structs.py and events.py in client/tiebreak/contract: the contract's enums, structs and events.

    .venv/bin/python scripts/make_contract_records.py

Names, order and types come from the compiled artifacts' ABIs. Members of enums and the comments, which an ABI does not
have, come from contracts/src. Python's names are those of Solidity, fields in snake_case.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOM = ROOT / "client" / "tiebreak" / "contract"
SOURCES = ROOT / "contracts" / "src"

Parameter = Mapping[str, Any]
"""One entry of `inputs`, `outputs` or `components` in an ABI."""

BASES = {"Side": "SideMethods", "GameView": "GameMethods[LevelView]"}
"""Enum or struct -> class that it inherits: of the page of enums, of `struct_bases`."""

CLIENTS_OWN = {"TrainingSpec": "PostedSpec"}
"""Struct -> class of the client that stands for it."""

DEFAULTS = {
    ("Terms", "trainer"): "ANYONE",
    **{
        ("Terms", field): "0"
        for field in ("attestationsNeeded", "auditWindow", "openingWindow", "auditFee", "attestationBond")
    },
}
"""Values of fields that most jobs leave as they are: anyone may train, and no attestation is needed."""
ZEROS = {"OperandRoot": "NO_OPERAND"}
"""Struct -> name of the constant in which all of it is zero."""

RENAMED = {"index": "leaf_index"}
"""Events: `Event.index` is the place of a log in its block."""

_ENUMS = '''"""Enums of the contract. Made by scripts/make_contract_records.py, not by hand."""

from __future__ import annotations

from enum import IntEnum
from typing import Self


class SideMethods(IntEnum):
    """Methods of `Side`."""

    @property
    def other(self) -> Self:
        return type(self)(1 - self)
'''

_STRUCTS = '''"""Structs of the contract. Made by scripts/make_contract_records.py, not by hand.

Amounts are in wei, instants in seconds since 1970 (0: never), durations in seconds, roots and nodes 32 bytes. Pairs
are indexed by `Side`.
"""

from __future__ import annotations

from dataclasses import dataclass

from eth_typing import ChecksumAddress

from tiebreak.contract.enums import {enums}
from tiebreak.contract.struct_bases import {bases}
'''

_EVENTS = '''"""Events of the contract. Made by scripts/make_contract_records.py, not by hand."""

from __future__ import annotations

from dataclasses import dataclass

from eth_typing import ChecksumAddress

from tiebreak.contract.enums import {enums}
from tiebreak.contract.struct_bases import PostedSpec
from tiebreak.contract.structs import {structs}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event and its place in the chain. `index` counts the logs of a block, so (block, index) orders all events."""

    block: int
    index: int
    transaction: bytes
'''


def snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def pages() -> dict[Path, str]:
    """The files as they have to be, by path."""
    interface = _abi("VerificationGame")
    shown = [item for entry in interface if entry["type"] == "function" for item in entry["inputs"] + entry["outputs"]]
    logged = sorted((entry for entry in interface if entry["type"] == "event"), key=lambda entry: entry["name"])
    shown += [item for entry in logged for item in entry["inputs"]]
    # Errors carry enums as well, those of the contracts that the game calls too.
    refused = [entry for path in sorted(ROOM.glob("artifacts/*.json")) for entry in _abi(path.stem)]
    shown += [item for entry in refused if entry["type"] == "error" for item in entry["inputs"]]
    types, docs = _Types(shown), _Sources()
    enums = [_enum(name, docs) for name in sorted(types.enums)]
    structs = [_struct(name, components, docs) for name, components in types.structs.items()]
    events = [_event(entry, docs) for entry in logged]
    return {
        ROOM / "enums.py": _page(_ENUMS, enums, types),
        ROOM / "structs.py": _page(_STRUCTS, structs, types),
        ROOM / "events.py": _page(_EVENTS, events, types),
    }


def _page(head: str, parts: list[str], types: _Types) -> str:
    """A file: its head, which gets the names that the parts use from the files before it, and the parts."""
    code = re.sub(r'""".*?"""', "", "\n".join(parts), flags=re.DOTALL)
    used = set(re.findall(r"\w+", code))
    from_bases = {"ANYONE", "GameMethods", "PostedSpec"}
    for mark, names in (("{enums}", types.enums), ("{bases}", from_bases), ("{structs}", {*types.structs})):
        head = head.replace(mark, ", ".join(sorted(used & names)))
    return "\n\n".join([head, *parts])


class _Types:
    """Enums and structs below some parameters; a struct comes after those that it holds."""

    def __init__(self, parameters: list[Parameter]) -> None:
        self.enums: set[str] = set()
        self.structs: dict[str, list[Parameter]] = {}
        for parameter in parameters:
            self._add(parameter)

    def _add(self, parameter: Parameter) -> None:
        family, name = _declared(parameter)
        if family == "enum":
            self.enums.add(name)
        elif family == "struct" and name not in CLIENTS_OWN:
            for item in parameter["components"]:
                self._add(item)
            self.structs.setdefault(name, parameter["components"])


class _Sources:
    """The parts that only the sources have: members of enums, and comments."""

    def __init__(self) -> None:
        self._text = "\n".join(path.read_text() for path in sorted(SOURCES.rglob("*.sol")))

    def comment(self, family: str, name: str) -> dict[str, str]:
        """The notice of a declaration (key ""), and what stands at its parameters."""
        found = re.search(rf"((?:^ *///.*\n)*)^ *{family} {name}\b", self._text, re.MULTILINE)
        assert found, f"{family} {name} is declared nowhere below contracts/src"
        words = " ".join(line.strip().removeprefix("///").strip() for line in found[1].splitlines())
        notice, *parameters = words.removeprefix("@notice ").split("@param ")
        said = {"": notice.strip()}
        return said | {name: text.strip() for name, text in (item.split(" ", 1) for item in parameters)}

    def items(self, family: str, name: str) -> dict[str, str]:
        """The fields of a struct, or members of an enum, in their order, with their comments."""
        found = re.search(rf"^{family} {name} {{\n(.*?)^}}", self._text, re.MULTILINE | re.DOTALL)
        assert found, f"{family} {name} is declared nowhere below contracts/src"
        items: dict[str, str] = {}
        comment: list[str] = []
        for line in found[1].splitlines():
            if line.strip().startswith("///"):
                comment.append(line.strip().removeprefix("///").strip())
            else:
                items[line.strip(" ,;").split(" ")[-1]] = " ".join(comment)
                comment = []
        return items


def _enum(name: str, docs: _Sources) -> str:
    lines = [f"class {name}({BASES.get(name, 'IntEnum')}):"]
    if notice := docs.comment("enum", name)[""]:
        lines += [*_docstring(notice), ""]
    for value, (member, comment) in enumerate(docs.items("enum", name).items()):
        lines += [f"    {member} = {value}", *_docstring(comment)]
    return "\n".join(lines) + "\n"


def _struct(name: str, components: list[Parameter], docs: _Sources) -> str:
    base = f"({BASES[name]})" if name in BASES else ""
    comments = docs.items("struct", name)
    lines = _class(name, base, docs.comment("struct", name)[""])
    for item in components:
        default = DEFAULTS.get((name, item["name"]))
        lines += [f"    {_field(item)}{f' = {default}' if default else ''}", *_docstring(comments[item["name"]])]
    if name in ZEROS:
        zeros = ", ".join(f"{snake_case(item['name'])}={_zero(item)}" for item in components)
        lines += ["", "", f"{ZEROS[name]} = {name}({zeros})"]
    return "\n".join(lines) + "\n"


def _event(entry: Parameter, docs: _Sources) -> str:
    comments = docs.comment("event", entry["name"])
    lines = _class(entry["name"], "(Event)", comments[""])
    for item in entry["inputs"]:
        renamed = {**item, "name": RENAMED.get(item["name"], item["name"])}
        lines += [f"    {_field(renamed)}", *_docstring(comments.get(item["name"], ""))]
    return "\n".join(lines) + "\n"


def _class(name: str, base: str, notice: str) -> list[str]:
    lines = ["@dataclass(frozen=True, slots=True, kw_only=True)", f"class {name}{base}:"]
    return [*lines, *_docstring(notice), ""] if notice else lines


def _field(parameter: Parameter) -> str:
    return f"{snake_case(parameter['name'])}: {_python_type(parameter)}"


def _python_type(parameter: Parameter) -> str:
    kind: str = parameter["type"]
    if kind.endswith("]"):
        start = kind.rindex("[")
        item = _python_type({**parameter, "type": kind[:start]})
        count = kind[start + 1 : -1]
        return f"tuple[{', '.join([item] * int(count)) if count else f'{item}, ...'}]"
    family, name = _declared(parameter)
    if family in ("enum", "struct"):
        return CLIENTS_OWN.get(name, name)
    if kind.startswith("uint"):
        return "int"
    return {"bytes32": "bytes", "bytes": "bytes", "string": "str", "bool": "bool", "address": "ChecksumAddress"}[kind]


def _declared(parameter: Parameter) -> tuple[str, str]:
    """The family (enum, struct, ...) of a parameter's declared type, and the type's name."""
    family, _, name = parameter["internalType"].partition(" ")
    return family, name.split("[")[0].rsplit(".", 1)[-1]


def _zero(parameter: Parameter) -> str:
    return "()" if parameter["type"].endswith("[]") else {"bytes32": "bytes(32)"}[parameter["type"]]


def _docstring(text: str) -> Iterator[str]:
    if not text:
        return
    lines = textwrap.wrap(f'"""{text}"""', 116, break_on_hyphens=False)
    yield from (f"    {line}" for line in lines)


def _abi(name: str) -> list[Any]:
    abi: list[Any] = json.loads((ROOM / "artifacts" / f"{name}.json").read_text())["abi"]
    return abi


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")
