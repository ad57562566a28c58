"""`tiebreak deploy`, `status` and `withdraw`: commands about the chain itself; and `tiebreak account ...`: the user's
key, encrypted on disk."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiebreak import quantities
from tiebreak.cli import network, option_groups, output
from tiebreak.cli.failures import CommandError, WrongUsage
from tiebreak.cli.option_groups import examples, takes_groups
from tiebreak.quantities import in_ether

if TYPE_CHECKING:
    from tiebreak.cli.account_summary import Reader
    from tiebreak.contract.game import VerificationGame


_MAX_KEY = 1000
"""Characters of standard input that are read as a key."""

File = Annotated[Path, typer.Argument(metavar="FILE", help="File for the encrypted key; must not exist.")]

accounts = typer.Typer(no_args_is_help=True, help="The key with which you take part.")


@accounts.command()
def create(file: File, json: option_groups.Json = False) -> None:
    """Make a new account. Its password is asked for, or read from TIEBREAK_KEYSTORE_PASSWORD."""
    from tiebreak.transactions.keys import create_keystore

    _require_new(file)
    made = create_keystore(file, _new_password(file))
    _show(made.address, file, "New account", json)
    if not json:
        output.show_line("Keep the file and its password: nobody can restore them.")


@accounts.command(
    name="import",
    epilog=examples(
        "tiebreak account import key.json",
        "tiebreak account import key.json --from private-key.txt",
        "tiebreak account import key.json --from UTC--2026-01-01--keystore",
    ),
)
def import_(
    file: File,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="A private key in hex, or another keystore; its password is asked for, or in "
            "TIEBREAK_IMPORT_PASSWORD. Without it the key is read from standard input.",
        ),
    ] = None,
    json: option_groups.Json = False,
) -> None:
    """Encrypt a key that you have. The key is typed in, piped in, or read from a file, never an argument: those are on
    record in the shell's history and in the list of processes."""
    from tiebreak.transactions.keys import account_from_key, create_keystore, read_key

    _require_new(file)

    def ask(text: str) -> str:
        answer: str = typer.prompt(text, hide_input=True, err=True)
        return answer

    if source is not None:
        found = read_key(source, ask)
    elif sys.stdin.isatty():
        found = account_from_key(ask("Private key"), "what was typed")
    else:
        found = account_from_key(sys.stdin.readline(_MAX_KEY), "standard input")
    create_keystore(file, _new_password(file), found)
    _show(found.address, file, "Imported account", json)


def _require_new(file: Path) -> None:
    if file.exists():
        raise CommandError(f"{file} exists already, and a key is never replaced: choose another place.")


def _new_password(file: Path) -> str:
    from tiebreak.transactions.keys import PASSWORD_VARIABLE

    password = os.environ.get(PASSWORD_VARIABLE)
    if password is None:
        password = typer.prompt(f"Password for {file}", hide_input=True, confirmation_prompt=True, err=True)
    return password


def _show(address: str, file: Path, title: str, as_json: bool) -> None:
    facts = {"address": address, "keystore": file}
    if as_json:
        output.show_json(facts)
    else:
        output.show_facts(title, facts)


@accounts.command()
def show(keystore: network.Keystore = None, json: option_groups.Json = False) -> None:
    """Show the address of your account."""
    address = network.account(keystore).address
    if json:
        output.show_json({"address": address})
    else:
        output.show_line(address)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command(
        epilog=examples(
            "tiebreak status 1", "tiebreak status --account 0x...", "tiebreak status --account 0x... --watch"
        )
    )(takes_groups(status))
    app.command()(takes_groups(withdraw))
    app.command()(takes_groups(deploy))


def deploy(
    keystore: network.Keystore = None,
    signer: network.RemoteSigner = None,
    signer_account: network.SignerAccount = None,
    *,
    node: network.ChainOptions,
    json: option_groups.Json = False,
) -> None:
    """Put a new contract on a chain. It belongs to nobody; all who use its address share it."""
    from tiebreak.contract.game import VerificationGame
    from tiebreak.transactions.sender import Sender

    key = network.key(keystore, signer, signer_account)
    game = VerificationGame.deploy(Sender(node.connect(), key))
    if json:
        output.show_json({"contract": game.address, "chain_id": game.node.chain_id})
    else:
        output.show_facts("Deployed", {"contract": game.address, "chain id": game.node.chain_id})


def status(
    job: Annotated[int | None, typer.Argument(min=1, metavar="[JOB]", help="Number of a job.")] = None,
    account: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Show the jobs, bonds, clocks, next moves and gas of an account.",
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it on a full screen, until Ctrl-C.")] = False,
    poll: Annotated[
        float,
        typer.Option(parser=quantities.interval(0.5), metavar="TIME", help="With --watch, time between two looks."),
    ] = "4s",  # type: ignore[assignment]  # parsed like what a user gives
    *,
    chain: network.ContractOptions,
    json: option_groups.Json = False,
) -> None:
    """Show the state of the contract, of one job and its games, or of an account."""
    from tiebreak.cli.account_summary import Reader
    from tiebreak.cli.views import find_job, show_posted

    if job is not None and account is not None:
        raise CommandError("a job and an account are too much at once: ask for one of them.")
    if watch and json:
        raise WrongUsage("a screen is for people: leave --json away, or --watch.")
    console = output.results()
    if watch and not console.is_terminal:
        raise CommandError("--watch needs a terminal: leave it away, or use --json in a loop.")
    who = network.address(account, "the account") if account is not None else None
    game = chain.open_game()
    reader = Reader(game, who, job)
    if watch:
        from tiebreak.cli.summary_text import LiveScreen
        from tiebreak.cli.summary_text import watch as play

        if job is not None:
            find_job(game, job)
        play(reader, LiveScreen(game.node.name, game.address), console, poll)
    elif job is not None:
        show_posted(game, job, with_games=True, as_json=json)
    else:
        _show_contract(game, reader if who is not None else None, json)


def _show_contract(game: VerificationGame, reader: Reader | None, as_json: bool) -> None:
    from tiebreak.cli.summary_text import account_text, games_text, jobs_table, plain_summary

    facts = {
        "chain_id": game.node.chain_id,
        "block": game.node.head().number,
        "contract": game.address,
        "jobs": game.job_count(),
        "games": game.game_count(),
    }
    found = reader.read() if reader is not None else None
    agreement = game.node.agreement  # after all that was read
    if agreement.nodes > 1:
        said = [agreement.contradiction] if agreement.contradiction else []
        facts["nodes"] = "; ".join([*said, *(one.rstrip(".") for one in agreement.missing)]) or "agree"
    if as_json:
        output.show_json(facts | (plain_summary(found) if found is not None else {}))
        return
    output.show_facts(game.node.name, {name.replace("_", " "): value for name, value in facts.items()})
    if found is not None:
        output.show_lines(account_text(found))
        for part in (jobs_table(found), *games_text(found)):
            output.show(part)


def withdraw(
    *,
    chain: network.AccountOptions,
    json: option_groups.Json = False,
) -> None:
    """Fetch what the contract owes to your account: rewards, returned bonds, shares of lost ones."""
    from tiebreak.contract.events import Withdrawn

    signer = chain.key()
    game = chain.open_game(signer)
    if game.credit_of(signer.address) == 0:
        raise CommandError(f"the contract owes nothing to {signer.address}: wait until a job or a game has ended.")
    receipt = game.send(game.withdraw())
    amount = game.event(receipt, Withdrawn).amount
    if json:
        output.show_json({"account": signer.address, "amount_wei": str(amount), "transaction": receipt.transaction})
    else:
        output.show_facts("Withdrawn", {"amount": in_ether(amount), "to": signer.address})
