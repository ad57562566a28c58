"""The format of the page about bit equality: a row for each task and each machine of the matrix, and one root a row."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "bit-equality.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the table whose head starts with `heading`."""
    lines = PAGE[PAGE.index(f"| {heading} ") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_page_is_about_the_matrix_that_the_script_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import matrix
    from machines.profiles import MACHINES
    from machines.tasks import SMALL

    assert PAGE.startswith(matrix._PAGE)
    assert [row[0] for row in rows("task")] == list(SMALL)
    cpus = [name for name, machine in MACHINES.items() if machine.device == "cpu"]
    assert set(cpus) <= {row[0] for row in rows("machine")} <= set(MACHINES)


def test_the_section_about_texts_is_the_scripts_and_has_one_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import matrix
    from machines.tasks import TEXT_STEPS, TEXTS

    assert "\n".join([matrix._TITLE_OF_TEXTS, matrix._TEXT_OF_TEXTS]) in PAGE
    for name in TEXTS:
        found = re.search(rf"^\| {name} \| (\d+) \| (\d+) \| (\d+) \| `[0-9a-f]{{16}}` \|", PAGE, re.MULTILINE)
        assert found is not None
        assert [int(number) for number in found.groups()] == [TEXT_STEPS, 3 * len(rows("machine")), 1]


def test_the_section_about_receipts_of_texts_is_the_scripts_and_has_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("starlette")
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import matrix_of_texts
    from machines.served_texts import ASKED, CLIENTS
    from machines.text_models import TEXT_MODELS

    assert matrix_of_texts.TITLE + "\n" + matrix_of_texts._TEXT in PAGE
    found = rows("model | machines")
    assert [row[0] for row in found] == TEXT_MODELS
    for _, machines, ways, runs, texts, receipts, root, wrong, plain in found:
        assert int(machines) == len(rows("machine")) and int(machines) <= int(ways) <= int(runs)
        assert (int(texts), receipts, wrong) == (int(runs) * (len(ASKED) + 1), str(CLIENTS), "0")
        assert re.fullmatch("`[0-9a-f]{16}`", root) and int(plain) > 1
