"""Files that survive a kill at any instant, and tensors read from files that are not trusted.

What is about tensors is loaded when it is first used, since PyTorch takes seconds.
"""

from typing import TYPE_CHECKING

from roundlog import lazy_face
from roundlog.storage.durable_files import (
    BESIDE,
    StorageError,
    append_file,
    commit_file,
    create_file,
    lock_file,
    open_regular,
    partial_path,
    read_at,
    read_hashes,
    read_into,
    read_record,
    reading,
    replace_file,
    require_regular,
    sync_directory,
    sync_file,
    write_record,
)

if TYPE_CHECKING:
    from roundlog.storage.tensor_files import (
        DTYPE_NAMES,
        StoredTensors,
        TensorEntry,
        entry_of,
        header_of,
        load_tensors,
        most_tensor_bytes,
        open_tensors,
        save_state,
        save_tensors,
        tensor_types,
    )

__getattr__ = lazy_face(__name__, __file__)
