"""The comparison with an emulated AArch64 (`scripts/other_architecture.py`), as far as it needs no emulator."""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import matrix
import other_architecture
import pytest
from generated import with_section
from machines import emulation
from machines.emulation import LIBRARIES, ROOT, TORCH, Emulation, MissingToolError, prepared, requirements
from machines.environment_control import Reaction
from machines.process import Outcome
from machines.profiles import Machine
from machines.tasks import MORE_TEXTS, SMALL, TEXTS
from matrix import Result
from other_architecture import (
    HERE,
    PAGE,
    THERE,
    TITLE,
    TITLE_IN_BF16,
    TITLE_OF_TEXTS,
    markdown,
    recorded,
    together,
    unnoticed,
    wrong,
)
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

RIGHT = Outcome("aa" * 32, "aa" * 32, "aa" * 32, 0, 0, "", "", 1.0)
KERNELS = {HERE: "11" * 32, THERE: "22" * 32}
RECORDED = {"digits": "aa" * 8}


def result(there: Outcome = RIGHT, here: Outcome = RIGHT, task: str = "digits") -> Result:
    return Result(KERNELS, {HERE: {task: here}, THERE: {task: there}})


def test_one_root_on_both_machines_is_what_is_expected() -> None:
    assert wrong(result(), RECORDED) == []
    # A task of another number of steps is recorded nowhere.
    assert wrong(result(), {}) == []


@pytest.mark.parametrize("way", ["trained", "audited", "alone"])
def test_another_root_on_aarch64_is_refused(way: str) -> None:
    other = replace(RIGHT, **{way: "ab" * 32})
    (sentence,) = wrong(result(other), RECORDED)
    assert sentence.startswith(f"digits on {THERE}: ") and "ab" * 32 in sentence and "aa" * 32 in sentence


@pytest.mark.parametrize("what", ["findings", "unreadable"])
def test_a_finding_on_aarch64_in_the_log_of_x86_is_refused(what: str) -> None:
    assert len(wrong(result(replace(RIGHT, **{what: 1})), RECORDED)) == 1


def test_a_root_that_both_machines_have_and_the_page_has_not_is_refused() -> None:
    other = replace(RIGHT, trained="bb" * 32, audited="bb" * 32, alone="bb" * 32)
    assert wrong(result(other, other), RECORDED) == [f"digits has the root {'bb' * 8}, where {'aa' * 8} is recorded"]


def test_machines_with_the_same_kernels_show_nothing() -> None:
    same = Result(dict.fromkeys(KERNELS, "11" * 32), result().outcomes)
    assert wrong(same, RECORDED) == ["the two machines have the same FP64 kernels, so that equal roots show nothing"]


def test_the_recorded_roots_are_those_of_the_matrix_and_its_number_of_steps() -> None:
    from machines.tasks import SMALL, SMALL_IN_BF16, SMALL_STEPS

    page = PAGE.read_text()
    roots = recorded(page, SMALL_STEPS)
    assert roots.keys() - SMALL_IN_BF16.keys() == SMALL.keys()
    assert all(f"`{root}`" in page for root in roots.values())
    assert recorded(page, SMALL_STEPS + 1) == {}


def test_roots_in_bf16_are_read_from_their_own_table() -> None:
    same = Result(KERNELS, {"native": {"gpt_bf16": RIGHT}, "AVX2": {"gpt_bf16": RIGHT}})
    page = with_section(PAGE.read_text(), matrix.markdown(same, {"gpt_bf16": 7}, full=False, precision="bf16"))
    assert recorded(page, 7) == {"gpt_bf16": "aa" * 8}
    assert recorded(page, 50) == recorded(PAGE.read_text(), 50)


def test_the_section_has_a_row_for_each_task_with_all_roots_side_by_side() -> None:
    there = {"architecture": "aarch64", "python": "3.11.2", "torch": "2.10.0+cpu"}
    both = together([result(), result(replace(RIGHT, alone="ab" * 32), task="gpt")])
    text = markdown(both, 50, there)
    in_bf16 = markdown(together([result(task="gpt_bf16")]), 8, there)
    text_of_llama = markdown(together([result(task="llama_text")]), 14, there)
    assert in_bf16.startswith(TITLE_IN_BF16 + "\n") and "| gpt_bf16 | 8 |" in in_bf16
    assert text_of_llama.startswith(TITLE_OF_TEXTS + "\n") and "| llama_text | 14 |" in text_of_llama
    assert text.startswith(TITLE + "\n") and "2.10.0+cpu" in text
    same, other = f"`{'aa' * 8}`", f"`{'ab' * 8}`"
    assert f"| digits | 50 | {same} | {same} | {same} | {same} | 0 |\n" in text
    assert f"| gpt | 50 | {same} | {same} | {same} | {other} | 0 |\n" in text


def test_a_section_takes_the_place_of_the_one_with_its_title_and_leaves_the_others() -> None:
    page = "# Page\n\ntext\n\n## One\n\nold\n\n## One more\n\nstays\n"
    assert with_section(page, "## One\n\nnew\n") == "# Page\n\ntext\n\n## One\n\nnew\n\n## One more\n\nstays\n"
    assert with_section(page, "## One more\n\nnew\n") == "# Page\n\ntext\n\n## One\n\nold\n\n## One more\n\nnew\n"
    assert with_section("# Page\n", "## One\n\nnew\n") == "# Page\n\n## One\n\nnew\n"


def test_the_page_has_all_tasks_of_the_matrix_with_equal_roots_on_both_machines() -> None:
    page = PAGE.read_text()
    assert other_architecture._TEXT in page
    rows = re.findall(r"^\| (\w+) \| (\d+) \| " + r"`([0-9a-f]{16})` \| " * 4 + r"(\d+) \|$", page, re.MULTILINE)
    for task, steps, *roots, findings in rows:
        # The table of x86-64 has no texts but one.
        known = roots[0] if task in MORE_TEXTS else recorded(page, int(steps))[task]
        assert ({*roots}, findings) == ({known}, "0")
    # Of the tasks in BF16, and of the texts, those that were asked for.
    assert {task for task, *_ in rows} >= {*SMALL, *TEXTS, *MORE_TEXTS, "gpt_bf16"}


def test_a_change_of_the_environment_that_goes_unnoticed_is_told() -> None:
    right = Reaction(refused=True, put_right=True, disturbed=True, disturbed_elsewhere=True)
    reactions = dict.fromkeys(("flushing", "down", "up", "towards zero"), right)
    assert unnoticed(reactions) == []
    for name in Reaction.__slots__:
        (sentence,) = unnoticed({**reactions, "flushing": replace(right, **{name: False})})
        assert sentence.startswith("the environment changed (flushing): ") and f"{name}=False" in sentence
    assert unnoticed({"flushing": right}) == ["the negative control has not tried flushing and three rounding modes"]


def test_a_control_that_fails_is_told() -> None:
    with pytest.raises(
        RuntimeError, match=r"^a process that was to be another machine failed:\n.*no module named machines"
    ):
        other_architecture.controlled(
            Machine(1, {}, interpreter=(sys.executable, "-c", "raise SystemExit('no module named machines')"))
        )


def test_all_that_the_engine_needs_is_fetched_in_the_version_of_the_constraints() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        dependencies = tomllib.load(file)["project"]["dependencies"]
    of_engine = dependencies[: dependencies.index("web3>=8.0.0,<9")]
    there = {**default_environment(), "platform_machine": "aarch64", "python_version": "3.11", "extra": ""}
    needed: set[str] = set()
    todo = [*of_engine, "eth-abi"]
    while todo:
        one = Requirement(todo.pop())
        if canonicalize_name(one.name) not in needed and (one.marker is None or one.marker.evaluate(there)):
            needed.add(canonicalize_name(one.name))
            todo += metadata.requires(one.name) or []
    # PyTorch's build for CUDA, if it is here, names libraries and a compiler; setuptools is for extensions in C++.
    needed = {name for name in needed if not name.startswith(("nvidia-", "cuda-", "triton", "setuptools"))}
    assert needed <= {*LIBRARIES, "torch"}
    assert requirements()[0] == TORCH
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9.]*", one) for one in requirements())


def test_the_requirement_takes_the_pytorch_that_the_comparison_runs_jobs_with() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        (torch,) = [one for one in tomllib.load(file)["project"]["dependencies"] if one.startswith("torch>")]
    least = re.search(r">=(\d+)\.(\d+)", torch)
    assert least is not None
    assert tuple(map(int, least.groups())) <= tuple(map(int, TORCH.partition("==")[2].split(".")[:2]))


@pytest.mark.parametrize("tool", ["apt-get", "dpkg-deb"])
def test_a_tool_that_is_missing_is_named_with_a_remedy(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulation.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(emulation.shutil, "which", lambda name: None if name == tool else f"/usr/bin/{name}")
    with pytest.raises(MissingToolError, match=f"^there is no {tool} here: "):
        prepared(tmp_path, "http://localhost", print)
    assert list(tmp_path.iterdir()) == []


def test_on_another_machine_it_says_what_to_run_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation.platform, "machine", lambda: "aarch64")
    with pytest.raises(
        MissingToolError, match=r"run scripts/matrix.py, whose roots are those of docs/bit-equality.md$"
    ):
        prepared(tmp_path, "http://localhost", print)


def test_what_is_fetched_already_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def unpack(place: Path, architecture: str, packages: tuple[str, ...], mirror: str) -> None:
        ran.append(architecture)
        (place / "usr/bin").mkdir(parents=True)
        for name in ("qemu-aarch64-static", "qemu-sparc64-static"):
            (place / "usr/bin" / name).touch()

    def install(place: Path, pip: object) -> None:
        ran.append("libraries")
        place.mkdir()
        if ran.count("libraries") == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(emulation.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(emulation.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(emulation, "KEYRING", tmp_path)
    monkeypatch.setattr(emulation, "_unpack", unpack)
    monkeypatch.setattr(emulation, "_install", install)
    with pytest.raises(KeyboardInterrupt):
        prepared(tmp_path / "cache", "http://one", print)
    assert ran == ["amd64", "arm64", "libraries"]
    for _ in range(2):
        assert prepared(tmp_path / "cache", "http://one", print) == Emulation(tmp_path / "cache")
    assert ran == ["amd64", "arm64", "libraries", "libraries"]
    assert [path.name for path in (tmp_path / "cache/emulator/usr/bin").iterdir()] == ["qemu-aarch64-static"]
    # Packages of another mirror may be others.
    prepared(tmp_path / "cache", "http://two", print)
    assert ran[4:] == ["amd64", "arm64"]


def test_an_emulated_process_takes_no_settings_of_programs_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("NUMBA_CPU_NAME", "skylake")
    machine = Emulation(tmp_path).machine()
    environment = machine.environment()
    assert environment["PYTHONPATH"].split(":")[-1] == str(tmp_path / "libraries")
    assert "NUMBA_CPU_NAME" not in environment and environment["OMP_NUM_THREADS"] == "1"
    command = " ".join(machine.interpreter)
    assert command.startswith(f"{tmp_path}/emulator/usr/bin/qemu-aarch64-static ") and "-U LD_PRELOAD" in command
    assert command.endswith(f"-L {tmp_path}/system {tmp_path}/system/usr/bin/python3.11")
