"""`tiebreak serve`: texts over HTTP with OpenAI's interface, each answer with a receipt."""

from __future__ import annotations

import re
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from tiebreak.cli import network, output
from tiebreak.cli.failures import CommandError, extra
from tiebreak.cli.generation import ARITHMETIC, DTYPE, TRAINING_RECEIPT, ProductArithmetic, WeightFormat
from tiebreak.cli.option_groups import MODEL, command, option
from tiebreak.cli.receipt_files import read_receipt_of_run
from tiebreak.cli.text_checks import READS_MODEL, read_model

DEFAULT_TEXT_PORT = 8000

_MOST_POSITIONS = 1 << 20
_ORIGIN = re.compile(
    r"(?!http://.*:80$|https://.*:443$)[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?"
)
"""An origin, as browsers write it: in small letters, without a port that goes without saying."""
_API_KEY = re.compile(rb"[!-~]{1,512}")
_REACH = "Who can ask"


@command(
    "serve",
    "tiebreak serve --model SmolLM2-135M-Instruct",
    "tiebreak serve --model SmolLM2-135M-Instruct --positions 2048 --rows 4 --port 0 --receipts answers",
    "tiebreak serve --model SmolLM2-135M-Instruct --sign --keystore key.json",
    "tiebreak serve --model SmolLM2-135M-Instruct --api-key-file api-key --allow-origin https://chat.example",
)
def serve(
    model: Path = option(MODEL, ..., "MODEL", rich_help_panel="The model"),
    dtype: WeightFormat | None = DTYPE,
    arithmetic: ProductArithmetic = ARITHMETIC,
    positions: int = option(
        "Most tokens of a prompt and its text together; the same text for any N that has room for it.",
        512,
        "N",
        min=2,
        max=_MOST_POSITIONS,
        rich_help_panel="The model",
    ),
    rows: int = option("Texts that are generated at once.", 8, "N", min=1, max=1024),
    max_waiting: int = option("Requests that wait; more are told to come back (503).", 64, "N", min=0, max=4096),
    host: str = option(
        "IP address to listen at. Nothing is encrypted: put a proxy that does before others than 127.0.0.1.",
        "127.0.0.1",
        "ADDRESS",
        rich_help_panel=_REACH,
    ),
    port: int = option("TCP port; 0 for any.", DEFAULT_TEXT_PORT, min=0, max=65535, rich_help_panel=_REACH),
    api_key_file: Path | None = option(
        "File of mode 0600 with the key that requests have to bring.", metavar="FILE", rich_help_panel=_REACH
    ),
    allow_origin: list[str] | None = option(
        "Let web pages of this origin read the answers; repeat it for others.",
        metavar="ORIGIN",
        rich_help_panel=_REACH,
    ),
    receipts: Path = option("Folder for the receipts of all answers.", Path("receipts"), "DIR"),
    training_receipt: Path | None = option(TRAINING_RECEIPT, metavar="FILE"),
    sign: bool = network.SIGN,
    keystore: Path | None = network.KEYSTORE,
) -> None:
    """Answer OpenAI's requests for texts (/v1/completions, /v1/chat/completions), each with a receipt to check it by.

    The answer to a request and its seed is the same on every machine, alone or beside others. Ctrl-C ends the server.
    """
    with extra("serve", "the server needs"):
        from tiebreak.server import CompletionServer, IssuedReceipts, TextService, listen_at
    from roundlog.generation import Generator

    for origin in allow_origin or ():
        if not _ORIGIN.fullmatch(origin):
            said = f"--allow-origin {origin[:80]!r} is not an origin as browsers write it"
            raise CommandError(f"{said}: name each, like https://chat.example or http://localhost:3000.")
    api_key = _api_key(api_key_file) if api_key_file is not None else None
    signer = network.account(keystore) if sign else None
    training = read_receipt_of_run(training_receipt).digest if training_receipt is not None else None
    with listen_at(host, port) as listening:
        kept = IssuedReceipts(receipts, signer)
        with output.progress("Preparing", stages=3) as bar:
            bar.tell(READS_MODEL)
            loaded = read_model(model, dtype.value if dtype is not None else None)
            generator = Generator(
                loaded.model, positions=positions, arithmetic=arithmetic.value, is_as_read=True, tell=bar.tell
            )
            service = TextService(
                loaded,
                generator,
                kept,
                tiebreak_version=version("tiebreak"),
                training_receipt=training,
                rows=rows,
                max_waiting=max_waiting,
            )
            try:
                service.prepare()
            except BaseException:
                service.close()
                raise
        server = CompletionServer(service, listening, origins=allow_origin or (), api_key=api_key)
        signs = f", signed by {signer.address}" if signer is not None else ""
        output.show_line(f"{service.model} answers at {server.url}v1{signs} (Ctrl-C ends it)")
        output.flush()
        with suppress(KeyboardInterrupt):  # how it is meant to end
            server.run()


def _api_key(file: Path) -> bytes:
    """Read the key in a file. Raises AccountError, CommandError."""
    from tiebreak.transactions.keys import read_secret

    key = read_secret(file, "API key file").strip()
    if not _API_KEY.fullmatch(key):
        raise CommandError(f"{file} is no API key: put 1 to 512 letters, digits and signs of ASCII into it, no spaces.")
    return key
