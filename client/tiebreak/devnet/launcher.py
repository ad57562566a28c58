"""A local development chain that several processes can share: anvil where its binary is, else the embedded chain behind
HTTP, on the loopback interface; and the directory in which it is kept over restarts.

`anvil.json`: the chain, where it is anvil's; `contract`: the address of the contract on it; `environment`: while the
chain runs, a file for the shell's `.` that points commands to it; `lock`: held by the process that runs it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from eth_typing import ChecksumAddress
from eth_utils.address import to_checksum_address
from roundlog.storage import lock_file, open_regular, replace_file

from tiebreak.process_resources import environment_of_others
from tiebreak.rpc.chain_errors import DevnetError
from tiebreak.rpc.node import ChainNode
from tiebreak.rpc.transport import HttpTransport
from tiebreak.transactions.keys import ACCOUNTS, BALANCE, MNEMONIC


class DevnetState(ExitStack):
    """A directory of one development chain, made if it is not there, and locked until `close`. Raises DevnetError if
    another process has it, or it cannot be used."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self.enter_context(lock_file(directory / "lock"))
        except BlockingIOError as error:
            raise DevnetError(f"another development chain runs on {directory}: stop it, or choose another.") from error
        except OSError as error:
            raise DevnetError(f"{directory} cannot be used ({error.strerror}): choose another place.") from error
        self._environment.unlink(missing_ok=True)  # of a process that was killed
        self.callback(self._environment.unlink, missing_ok=True)

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
        """Write the files `contract` and `environment`. Raises DevnetError."""
        exports = f"export TIEBREAK_CHAIN={url} TIEBREAK_CONTRACT={contract}\n"
        try:
            for path, text in ((self.directory / "contract", f"{contract}\n"), (self._environment, exports)):
                with replace_file(path) as file:
                    file.write(text.encode())
        except OSError as error:
            raise DevnetError(
                f"{self.directory} cannot be written ({error.strerror}): make room on its disk."
            ) from error

    @property
    def _environment(self) -> Path:
        return self.directory / "environment"


ANVIL_VARIABLE = "TIEBREAK_ANVIL"
"""Environment variable that names anvil's binary, or is empty to do without it."""

_START_SECONDS = 20.0
_SECONDS_BETWEEN_STATES = "10"
_WATCHED = 'exec 3<&0; "$@" <&- 3<&- & child=$!; { read -r _ <&3; kill $child; } >&- 2>&- & exec 3<&-; wait $child'
"""Shell script that runs a command and ends it when the shell's standard input closes: when the parent closes it, ends,
or is killed. The command's own exit ends the shell."""
_LISTENING = re.compile(r"Listening on 127\.0\.0\.1:(\d+)")


class Devnet(ExitStack):
    """A running chain at `url` with `ACCOUNTS` funded accounts (see `keys.devnet_account`); ends with `close`.

    `kind` is "anvil" or "embedded". Time runs with the wall clock; `ChainNode.advance_time` moves it forward.
    """

    def __init__(self, kind: str, url: str, process: subprocess.Popen[bytes] | None = None) -> None:
        """process: of `_WATCHED`."""
        super().__init__()
        self.kind, self.url, self._process = kind, url, process
        if process is not None:
            self.callback(_end, process)

    @property
    def running(self) -> bool:
        return self._process is None or self._process.poll() is None


def start_devnet(port: int = 0, *, kind: str = "auto", state: DevnetState | None = None) -> Devnet:
    """Start a chain at 127.0.0.1:`port` (0: any free port).

    `kind`: "anvil", "embedded", or "auto" for anvil if its binary is found, else embedded. `state`: where anvil keeps
    its chain, and goes on from; its clock never runs backwards. Raises DevnetError: the port is taken, anvil is wanted
    but absent, or it does not start.
    """
    if kind not in ("auto", "anvil", "embedded"):
        raise DevnetError(f"there is no development chain of the kind {kind!r}: use auto, anvil or embedded.")
    binary = None if kind == "embedded" else find_anvil()
    if binary is not None:
        return _start_anvil(binary, port, state)
    if kind == "anvil":
        raise DevnetError(
            f"anvil is not installed: run npm ci in the project, put it on the PATH, or name it in {ANVIL_VARIABLE}."
        )
    # Imported here because py-evm takes a second to load.
    from tiebreak.devnet.embedded import EmbeddedChain
    from tiebreak.devnet.rpc_server import serve_chain

    server = serve_chain(EmbeddedChain(), port)
    devnet = Devnet("embedded", server.url)
    devnet.callback(server.stop)
    return devnet


def find_anvil() -> Path | None:
    """Return anvil's binary: named by the environment, installed in the project by npm, or on the PATH; None if
    absent."""
    if (named := os.environ.get(ANVIL_VARIABLE)) is not None:
        found = shutil.which(Path(named).absolute()) if named else None
        return Path(found) if found else None
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    package = f"@foundry-rs/anvil-{platform.system().lower()}-{machine}"
    project = Path(__file__).resolve().parents[3]
    found = shutil.which(project / "node_modules" / package / "bin" / "anvil") or shutil.which("anvil")
    return Path(found) if found else None


def _start_anvil(binary: Path, port: int, state: DevnetState | None) -> Devnet:
    if port:
        _require_free(port)  # anvil itself would say so only after a panic
    # A file and not a pipe: nobody reads what anvil prints later, and a full pipe would stop it.
    with tempfile.TemporaryFile() as output:
        arguments = [
            *("/bin/sh", "-c", _WATCHED, "devnet"),
            *(str(binary), "--host", "127.0.0.1", "--port", str(port), "--mnemonic", MNEMONIC),
            *("--accounts", str(ACCOUNTS), "--balance", str(BALANCE // 10**18), "--hardfork", "prague"),
        ]
        if state is not None:
            # Anvil writes its state when it ends, and every few seconds for the case that it is killed.
            arguments += ["--state", str(state.directory / "anvil.json"), "--state-interval", _SECONDS_BETWEEN_STATES]
        try:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment_of_others(),
            )
        except OSError as error:
            raise DevnetError(f"{binary} cannot be run ({error.strerror}): check the file.") from error
        deadline = time.monotonic() + _START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            size = os.fstat(output.fileno()).st_size
            found = _LISTENING.search(os.pread(output.fileno(), size, 0).decode("utf-8", "replace"))
            if found:
                url = f"http://127.0.0.1:{found[1]}"
                if state is not None:
                    _restore_clock(url)
                return Devnet("anvil", url, process)
            time.sleep(0.01)
        _end(process)
        said = " ".join(os.pread(output.fileno(), 4096, 0).decode("utf-8", "replace").split())[-200:]
        raise DevnetError(f"anvil did not start ({said}): check {binary}, or use the embedded chain.")


def _restore_clock(url: str) -> None:
    """Set anvil's clock behind the newest block's time where that is ahead of the wall clock: anvil keeps blocks, and
    not by how much its clock was moved."""
    node = HttpTransport(url)
    ahead = ChainNode(node).head().timestamp - int(time.time())
    if ahead >= 0:
        node.request("evm_increaseTime", [ahead + 1])


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command that runs under `_WATCHED`, and waits for it."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise DevnetError(f"port {port} is taken: choose another, or stop what listens there.") from error
