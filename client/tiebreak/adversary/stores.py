"""Dishonest stores, which keep back what their party says it has published."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from tiebreak.store import ContentStore


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
