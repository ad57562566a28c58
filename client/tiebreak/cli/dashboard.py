"""`tiebreak dashboard`."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from tiebreak.cli import network, output
from tiebreak.cli.failures import CommandError, WrongUsage, extra
from tiebreak.cli.option_groups import command, option

DEFAULT_PORT = 8646


@command(
    "dashboard",
    "tiebreak dashboard",
    "tiebreak dashboard --port 0 --files ~/.local/share/tiebreak/auditor",
    "tiebreak dashboard --files job --explorer https://sepolia.etherscan.io",
)
def dashboard(
    port: int = option("TCP port of the page; 0 for any.", DEFAULT_PORT, min=0, max=65535),
    host: str = option("Address of the page, on the loopback interface only.", "127.0.0.1"),
    files: list[Path] | None = option(
        "Directory of a job, or of a role: operators get their names and lines from it. Repeatable.", metavar="DIR"
    ),
    explorer: str | None = option("Block explorer that transactions are linked to.", metavar="URL"),
    *,
    chain: network.ContractOptions,
) -> None:
    """Show jobs, games and accounts on a local web page. It reads only, needs no key, and answers this machine alone.

    What runs long enough to be watched is kept up to date by itself. Without JavaScript the page is whole, too, but
    stands still. Ctrl-C ends it.
    """
    for directory in files or ():
        if not directory.is_dir():
            raise CommandError(f"there is no directory {directory}: check the path.")
    if explorer is not None and not re.fullmatch(r"https?://[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9._~/-]*)?", explorer):
        raise WrongUsage(f"{explorer} is not the address of a block explorer: use the form https://etherscan.io.")
    with extra("dashboard", "the page needs"):
        from tiebreak.dashboard.site import Site
        from tiebreak.dashboard.web import serve
        from tiebreak.http_server import listen_at, url_of

    site = Site(chain.open_game(), files=files or (), explorer=explorer or "")
    with listen_at(host, port, only_local=True) as listening:
        output.show_line(f"The page is at {url_of(listening)} (Ctrl-C ends it)")
        output.flush()
        with suppress(KeyboardInterrupt):  # how it is meant to end
            serve(site, listening)
