"""`tiebreak serve`: texts over HTTP with OpenAI's interface, each answer with a receipt."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiebreak.cli import network, output
from tiebreak.cli.failures import CommandError
from tiebreak.cli.generation import Products, Weights
from tiebreak.cli.jobs import ProductArithmetic
from tiebreak.cli.option_groups import examples, panel
from tiebreak.cli.receipt_files import digest_of_run
from tiebreak.cli.text_checks import READS_MODEL, read_model

if TYPE_CHECKING:
    from tiebreak.server import TextSigner

DEFAULT_TEXT_PORT = 8000

_MOST_POSITIONS = 1 << 20
_model_option = panel("The model")


def register(app: typer.Typer) -> None:
    """Adds the command."""
    lines = examples(
        "tiebreak serve --model SmolLM2-135M-Instruct",
        "tiebreak serve --model SmolLM2-135M-Instruct --positions 2048 --rows 4 --port 0 --receipts answers",
        "tiebreak serve --model SmolLM2-135M-Instruct --sign --keystore key.json",
    )
    app.command(epilog=lines)(serve)


def serve(
    model: Annotated[
        Path,
        _model_option("--model", metavar="MODEL", help="Folder with config, tokenizer and weights, or a GGUF file."),
    ],
    dtype: Weights = None,
    arithmetic: Products = ProductArithmetic.EXACT,
    positions: Annotated[
        int,
        _model_option(
            "--positions",
            min=2,
            max=_MOST_POSITIONS,
            metavar="N",
            help="Most tokens of a prompt and its text together; the same text for any N that has room for it.",
        ),
    ] = 512,
    rows: Annotated[int, typer.Option(min=1, max=1024, metavar="N", help="Texts that are generated at once.")] = 8,
    max_waiting: Annotated[
        int, typer.Option(min=0, max=4096, metavar="N", help="Requests that wait; more are told to come back (503).")
    ] = 64,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="IP address to listen at. There is no authentication: put a proxy before any other than 127.0.0.1.",
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port; 0 for any.")] = DEFAULT_TEXT_PORT,
    receipts: Annotated[
        Path, typer.Option("--receipts", metavar="DIR", help="Folder for the receipts of all answers.")
    ] = Path("receipts"),
    training_receipt: Annotated[
        Path | None,
        typer.Option(
            "--training-receipt",
            metavar="FILE",
            help="Receipt of the run that the weights come from, to be named in each.",
        ),
    ] = None,
    sign: Annotated[bool, typer.Option("--sign", help="Sign them with your account's key (EIP-191).")] = False,
    keystore: network.Keystore = None,
) -> None:
    """Answer OpenAI's requests for texts (/v1/completions, /v1/chat/completions), each with a receipt to check it by.

    The answer to a request and its seed is the same on every machine, alone or beside others. Ctrl-C ends the server.
    """
    try:
        from tiebreak.server import CompletionServer, IssuedReceipts, TextService, listen_at
    except ModuleNotFoundError as error:
        raise CommandError(f"the server needs {error.name}: pip install 'tiebreak[serve]'.") from error
    from roundlog.generation import Generator

    signer = _signer(keystore) if sign else None
    training = digest_of_run(training_receipt) if training_receipt is not None else None
    with listen_at(host, port) as listening:
        kept = IssuedReceipts(receipts, signer)
        with output.progress("Preparing", stages=3) as bar:
            bar.tell(READS_MODEL)
            loaded = read_model(model, dtype.value if dtype is not None else None)
            generator = Generator(loaded.model, positions=positions, arithmetic=arithmetic.value, tell=bar.tell)
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
        server = CompletionServer(service, listening)
        signs = f", signed by {signer.shown}" if signer is not None else ""
        output.show_line(f"{service.model} answers at {server.url}v1{signs} (Ctrl-C ends it)")
        output.flush()
        with suppress(KeyboardInterrupt):  # how it is meant to end
            server.run()


def _signer(keystore: Path | None) -> TextSigner:
    from tiebreak.server import TextSigner
    from tiebreak.transactions.keys import sign_text

    account = network.account(keystore)
    return TextSigner(bytes.fromhex(account.address[2:]), account.address, lambda text: sign_text(account, text))
