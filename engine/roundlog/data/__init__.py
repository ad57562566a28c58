"""Data sets: fields that are held in memory or read from files, a few rows at a time."""

from roundlog.data.arrow import ArrowField, arrow_fields
from roundlog.data.data_blocks import BlockCache, block_roots_bytes, read_block_roots, write_block_roots
from roundlog.data.field import DataError, Field, FieldSummary, HeldField, data_tree, held, is_unchanged, summarised
from roundlog.data.files import HELD_BYTES, file_bytes, file_pieces, most_data_bytes, read_fields, write_fields
from roundlog.data.remote_field import (
    Elsewhere,
    RemoteDataError,
    RemoteField,
    RemoteFile,
    Unavailable,
    fetched_bytes,
    remote_fields,
)
from roundlog.data.sources import (
    NARROW,
    absence,
    field_of,
    fields_of,
    is_lazy_view,
    materialized,
    reach,
    safetensors_fields,
    widened,
    windows,
)
from roundlog.data.stored_field import FileField, StoredField

__all__ = [
    "HELD_BYTES",
    "NARROW",
    "ArrowField",
    "BlockCache",
    "DataError",
    "Elsewhere",
    "Field",
    "FieldSummary",
    "FileField",
    "HeldField",
    "RemoteDataError",
    "RemoteField",
    "RemoteFile",
    "StoredField",
    "Unavailable",
    "absence",
    "arrow_fields",
    "block_roots_bytes",
    "data_tree",
    "fetched_bytes",
    "field_of",
    "fields_of",
    "file_bytes",
    "file_pieces",
    "held",
    "is_lazy_view",
    "is_unchanged",
    "materialized",
    "most_data_bytes",
    "reach",
    "read_block_roots",
    "read_fields",
    "remote_fields",
    "safetensors_fields",
    "summarised",
    "widened",
    "windows",
    "write_block_roots",
    "write_fields",
]
