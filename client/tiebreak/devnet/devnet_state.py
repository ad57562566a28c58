"""The directory in which a development chain is kept over restarts.

`anvil.json` or `embedded.jsonl`: the chain; `contract`: the address of the contract on it; `environment`: while the
chain runs, a file for the shell's `.` that points commands to it; `lock`: held by the process that runs it.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType

from eth_typing import ChecksumAddress
from eth_utils.address import to_checksum_address
from roundlog.storage import lock_file, open_regular, replace_file

from tiebreak.rpc.chain_errors import DevnetError

_FILES = {"anvil": "anvil.json", "embedded": "embedded.jsonl"}


class DevnetState:
    """A directory of one development chain, made if it is not there, and locked until `close`. Raises DevnetError if
    another process has it, or it cannot be used."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = lock_file(directory / "lock")
        except BlockingIOError as error:
            raise DevnetError(f"another development chain runs on {directory}: stop it, or choose another.") from error
        except OSError as error:
            raise DevnetError(f"{directory} cannot be used ({error.strerror}): choose another place.") from error
        self._environment.unlink(missing_ok=True)  # of a process that was killed

    def file(self, kind: str) -> Path:
        """The file of a chain of the kind "anvil" or "embedded"."""
        return self.directory / _FILES[kind]

    def kind(self, wanted: str) -> str:
        """The kind of the chain that is kept here, or `wanted` if there is none yet. Raises DevnetError if it is of
        another kind than is wanted ("auto" is any)."""
        kept = [kind for kind in _FILES if self.file(kind).exists()]
        if len(kept) > 1:
            raise DevnetError(f"{self.directory} holds chains of two kinds: delete {' or '.join(_FILES.values())}.")
        if kept and wanted not in ("auto", kept[0]):
            raise DevnetError(
                f"{self.directory} holds a chain of the kind {kept[0]}: use --kind {kept[0]}, or another directory."
            )
        return kept[0] if kept else wanted

    @property
    def contract(self) -> ChecksumAddress | None:
        """Address of the contract on this chain; None if none was put there yet, or the file does not say."""
        try:
            with open_regular(self.directory / "contract") as file:
                text = file.read(100).decode("ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return to_checksum_address(text) if re.fullmatch("0x[0-9a-fA-F]{40}", text) else None

    def announce(self, url: str, contract: ChecksumAddress) -> None:
        """Writes the files `contract` and `environment`. Raises DevnetError."""
        exports = f"export TIEBREAK_CHAIN={url} TIEBREAK_CONTRACT={contract}\n"
        try:
            for path, text in ((self.directory / "contract", f"{contract}\n"), (self._environment, exports)):
                with replace_file(path) as file:
                    file.write(text.encode())
        except OSError as error:
            raise DevnetError(
                f"{self.directory} cannot be written ({error.strerror}): make room on its disk."
            ) from error

    def close(self) -> None:
        self._environment.unlink(missing_ok=True)
        self._lock.close()

    @property
    def _environment(self) -> Path:
        return self.directory / "environment"

    def __enter__(self) -> DevnetState:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
