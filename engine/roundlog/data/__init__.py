"""Data sets: fields that are held in memory or read from files, a few rows at a time."""

from roundlog.data.arrow import ArrowField, arrow_fields
from roundlog.data.errors import DataError
from roundlog.data.field import Field, HeldField, held
from roundlog.data.file_field import FileField
from roundlog.data.files import HELD_BYTES, file_bytes, file_pieces, read_fields, write_fields
from roundlog.data.sources import field_of, fields_of, safetensors_fields, windows
from roundlog.data.stored_field import StoredField
from roundlog.data.summary import FieldSummary, data_tree, summarised

__all__ = [
    "HELD_BYTES",
    "ArrowField",
    "DataError",
    "Field",
    "FieldSummary",
    "FileField",
    "HeldField",
    "StoredField",
    "arrow_fields",
    "data_tree",
    "field_of",
    "fields_of",
    "file_bytes",
    "file_pieces",
    "held",
    "read_fields",
    "safetensors_fields",
    "summarised",
    "windows",
    "write_fields",
]
