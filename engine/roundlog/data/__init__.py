"""Data sets: fields that are held in memory or read from files, a few rows at a time."""

from roundlog.data.field import DataError, Field, FieldSummary, HeldField, as_field, data_tree, is_unchanged, summarised
from roundlog.data.files import (
    HELD_BYTES,
    FileField,
    StoredField,
    file_pieces,
    most_data_bytes,
    read_fields,
    write_fields,
)
from roundlog.data.remote_field import (
    BlockCache,
    Elsewhere,
    RemoteDataError,
    RemoteField,
    RemoteFile,
    Unavailable,
    block_roots_bytes,
    fetched_bytes,
    read_block_roots,
    remote_fields,
    write_block_roots,
)
from roundlog.data.sources import (
    NARROW,
    STORED,
    absence,
    copied,
    field_of,
    fields_of,
    is_lazy_view,
    materialized,
    micro_batches,
    reach,
    widened,
    windows,
)
