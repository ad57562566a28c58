"""Writes the tables of docs/how-to/scripts.md, an index of the scripts in tests/scripts, and its links to them.

python scripts/make_script_docs.py          writes the page
python scripts/make_script_docs.py --check  exits with 1 if the page on disk is not what would be written
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from generated import with_parts, write_or_check

if TYPE_CHECKING:
    from tests.scripts.script_corpus import Script

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "how-to" / "scripts.md"


def page() -> str:
    """The page as it should be: counts, tables, and links to the lines on which functions begin."""
    sys.path.insert(0, str(ROOT))
    corpus = importlib.import_module("tests.scripts.script_corpus")
    scripts: dict[str, Script] = corpus.corpus()
    refused = sum(bool(script.outcome.sentence) for script in scripts.values())
    links = {name: link(script) for name, script in scripts.items()}
    lines = []
    for module in corpus.MODULES:
        home = f"tests.scripts.{module}"
        head, _, introduction = (sys.modules[home].__doc__ or "").partition("\n\n")
        lines += [
            f"## {head.strip()}\n",
            f"{introduction.strip()}\n",
            "| script | seen in | becomes |",
            "|---|---|---|",
        ]
        own = (script for script in scripts.values() if script.function.__module__ == home)
        lines += [
            f"| {script.title}: {link(script)} | {script.source} | {becomes(script, links)} |".replace("\n", " ")
            for script in own
        ]
        lines.append("")
    counts = f"Of {len(scripts)} scripts {len(scripts) - refused} are captured as they are, {refused} are refused.\n"
    text = with_parts(PAGE, {"counts": counts, "tables": "\n".join(lines)})
    return re.sub(r"\[`(\w+)`\]\(\.\./\.\./tests/scripts/[^)]*\)", lambda found: links[found[1]], text)


def link(script: Script) -> str:
    """Link to the function, by its name."""
    code = script.function.__code__
    return f"[`{script.name}`](../../tests/scripts/{Path(code.co_filename).name}#L{code.co_firstlineno})"


def becomes(script: Script, links: dict[str, str]) -> str:
    outcome = script.outcome
    if not outcome.sentence:
        return f"a job, with the warning “… {outcome.warning} …”" if outcome.warning else "a job"
    instead = f"write {links[outcome.rewrite]}" if outcome.rewrite else outcome.advice
    return f"refused, “… {outcome.sentence} …”: {instead}"


if __name__ == "__main__":
    sys.exit(write_or_check(__doc__, {PAGE: page()}))
