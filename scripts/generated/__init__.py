"""Files that scripts generate from the code, and their option --check; sections of pages that scripts measure."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path


def write_or_check(description: str | None, files: Mapping[Path, str]) -> int:
    """Writes each file (path -> its text) that is not so yet; with --check on the command line, it writes nothing. The
    exit code: 1 if --check finds a file that would be written, otherwise 0. description: of the script."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{path.name} {f'is stale: run python scripts/{Path(sys.argv[0]).name}' if check else 'written'}")
        if not check:
            path.write_text(files[path])
    return 1 if check and stale else 0


def with_section(page: str, section: str) -> str:
    """A page with a section, which begins with its title, in the place of the one of that title, or at the end."""
    before, _, rest = page.partition(section.partition("\n")[0] + "\n")
    _, mark, after = rest.partition("\n## ")
    return before.rstrip() + "\n\n" + section.rstrip() + "\n" + mark + after


def with_parts(path: Path, parts: Mapping[str, str]) -> str:
    """A page with the generated text of each part between the comments `<!-- NAME -->` and `<!-- end -->`; the rest of
    the page is written by hand."""
    text = path.read_text()
    for name, part in parts.items():
        place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = place.subn(lambda found, part=part: found[1] + part + found[2], text)  # type: ignore[misc]
        assert count == 1, f"{path.name} has no place for {name}"
    return text
