"""Small JSON records that are replaced as a whole: where a run stands, what it committed to."""

import json
from pathlib import Path
from typing import Any

from roundlog.storage.atomic import replace_file
from roundlog.storage.errors import StorageError
from roundlog.storage.regular import reading

MAX_RECORD_BYTES = 16 << 20


def write_record(path: Path, record: Any) -> None:
    """Replaces the record at `path` durably by `record`, which is what JSON can hold (finite numbers only)."""
    text = json.dumps(record, allow_nan=False, indent=1, sort_keys=True)
    with replace_file(path) as file:
        file.write(text.encode() + b"\n")


def read_record(path: Path, max_bytes: int = MAX_RECORD_BYTES) -> Any:
    """The record at `path`. Raises StorageError if there is none, if it is longer than `max_bytes` or is
    not JSON.
    """
    with reading(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise StorageError(path, f"is longer than the {max_bytes} bytes allowed")
    try:
        return json.loads(data, object_pairs_hook=lambda pairs: _unique(path, pairs))
    except StorageError:
        raise
    except (ValueError, RecursionError) as error:
        raise StorageError(path, f"is not JSON: {error}") from error


def _unique(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise StorageError(path, "has a key twice")
    return record
