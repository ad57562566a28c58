"""Dishonest stores, which publish another log than the trainer has written, or keep back what they say they publish."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
from roundlog.log import Decision, Entries, LogReader, LogWriter
from roundlog.operators import Inexact, operator
from roundlog.training import Job, log_header, log_path
from tiebreak.store import ContentStore


def spoiling(store: ContentStore, spoil: Callable[[Path], None]) -> ContentStore:
    """A store that publishes a changed copy in place of a log. spoil: changes the files of the copy."""
    return cast(ContentStore, _SpoilingStore(store, spoil))


class _SpoilingStore:
    def __init__(self, store: ContentStore, spoil: Callable[[Path], None]) -> None:
        self._store, self._spoil = store, spoil

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def add_directory(self, path: Path) -> str:
        return self._store.add_directory(self._spoiled(path))

    def address_of_directory(self, path: Path) -> str:
        return self._store.address_of_directory(self._spoiled(path))

    def _spoiled(self, path: Path) -> Path:
        if path.name == "log":
            copy = path.with_name("spoiled-log")
            if not copy.exists():
                shutil.copytree(path, copy)
                self._spoil(copy)
            path = copy
        return path


def forge(log_dir: Path) -> None:
    """Swaps up and down in every decision of a log. Inexact operators without a decision get one for their first
    element, because a small step may have no ambiguous element."""
    job = Job.read(log_dir.parent.parent / "job")
    sizes = [node.type.numel for node in job.program.nodes]
    invented = {
        index: Entries(np.zeros(1, np.int64), np.full(1, Decision.UP, np.uint8), np.zeros(0, np.uint32))
        for index, node in enumerate(job.program.nodes)
        if sizes[index] and isinstance(operator(node.op), Inexact)
    }
    for interval in range(job.spec.intervals):
        header, path = log_header(job, interval), log_path(log_dir, interval)
        honest = path.rename(path.with_suffix(".honest"))
        with LogReader(honest, header, sizes) as reader, LogWriter(path, header) as writer:
            for step in range(header.first_step, header.first_step + header.steps):
                turned = {index: _turned(entries) for index, entries in reader.step(step).items()}
                writer.append(step, {**invented, **turned})
        honest.unlink()


def _turned(entries: Entries) -> Entries:
    decisions = entries.decisions.copy()
    two_sided = decisions != int(Decision.VALUE)
    decisions[two_sided] = int(Decision.UP) + int(Decision.DOWN) - decisions[two_sided]
    return Entries(entries.indices, decisions.astype(np.uint8), entries.values)


def withholding(store: ContentStore, *, log: bool = True, model: bool = True) -> ContentStore:
    """A store that names the right addresses of a log, of a model or of both, and does not publish them."""
    return cast(ContentStore, _WithholdingStore(store, log, model))


class _WithholdingStore:
    def __init__(self, store: ContentStore, log: bool, model: bool) -> None:
        self._store, self._log, self._model = store, log, model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def add_directory(self, path: Path) -> str:
        return self._store.address_of_directory(path) if self._log else self._store.add_directory(path)

    def add_file(self, path: Path) -> str:
        return self._store.address_of_file(path) if self._model else self._store.add_file(path)
