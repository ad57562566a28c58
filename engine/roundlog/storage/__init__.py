"""Files that survive a kill at any instant, and tensors read from files that are not trusted."""

from roundlog.storage.atomic import commit_file, partial_path, replace_file, sync_directory
from roundlog.storage.errors import StorageError
from roundlog.storage.records import read_record, write_record
from roundlog.storage.regular import open_regular, read_at, read_into, reading, require_regular
from roundlog.storage.tensors import (
    Entry,
    StoredTensors,
    entry_of,
    header_of,
    load_tensors,
    most_tensor_bytes,
    open_tensors,
    save_state,
    save_tensors,
    tensor_types,
)

__all__ = [
    "Entry",
    "StorageError",
    "StoredTensors",
    "commit_file",
    "entry_of",
    "header_of",
    "load_tensors",
    "most_tensor_bytes",
    "open_regular",
    "open_tensors",
    "partial_path",
    "read_at",
    "read_into",
    "read_record",
    "reading",
    "replace_file",
    "require_regular",
    "save_state",
    "save_tensors",
    "sync_directory",
    "tensor_types",
    "write_record",
]
