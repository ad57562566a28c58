"""`tiebreak deploy`, `status` and `withdraw`: commands about the chain itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tiebreak.cli import network, options
from tiebreak.cli.failures import CommandError
from tiebreak.cli.groups import takes_groups
from tiebreak.cli.quantities import in_ether

if TYPE_CHECKING:
    from eth_typing import ChecksumAddress

    from tiebreak.chain.game import VerificationGame


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(takes_groups(status))
    app.command()(takes_groups(withdraw))
    app.command()(takes_groups(deploy))


def deploy(
    keystore: network.Keystore = None,
    *,
    node: network.ChainOptions,
    json: options.Json = False,
) -> None:
    """Put a new contract on a chain. It belongs to nobody; all who use its address share it."""
    from tiebreak.chain.game import VerificationGame
    from tiebreak.chain.node import connect
    from tiebreak.chain.sender import Sender
    from tiebreak.cli import output

    signer = network.account(keystore)
    game = VerificationGame.deploy(Sender(connect(node.chain, confirmations=node.confirmations or 0), signer))
    if json:
        output.show_json({"contract": game.address, "chain_id": game.node.chain_id})
    else:
        output.show_facts("Deployed", {"contract": game.address, "chain id": game.node.chain_id})


def status(
    job: Annotated[int | None, typer.Argument(min=1, metavar="[JOB]", help="Number of a job.")] = None,
    account: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Show the balance and the credit of an account.")
    ] = None,
    *,
    chain: network.ContractOptions,
    json: options.Json = False,
) -> None:
    """Show the state of the contract, or of one job and its games."""
    from tiebreak.cli import output
    from tiebreak.cli.views import show_posted

    if job is not None and account is not None:
        raise CommandError("a job and an account are too much at once: ask for one of them.")
    who = network.address(account, "the account") if account is not None else None
    game = chain.open_game()
    if job is not None:
        show_posted(game, job, with_games=True, as_json=json)
    else:
        head = game.node.head()
        facts = {
            "chain_id": game.node.chain_id,
            "block": head.number,
            "contract": game.address,
            "jobs": game.job_count(),
            "games": game.game_count(),
        }
        if json:
            output.show_json(facts | (_plain_account(game, who) if who else {}))
            return
        output.show_facts(game.node.name, {name.replace("_", " "): value for name, value in facts.items()})
    if who is not None and not json:
        money = {"balance": in_ether(game.node.balance(who)), "credit": in_ether(game.credit_of(who))}
        output.show_facts(f"Account {who}", money)


def withdraw(
    *,
    chain: network.AccountOptions,
    json: options.Json = False,
) -> None:
    """Fetch what the contract owes to your account: rewards, returned bonds, shares of lost ones."""
    from tiebreak.cli import output

    signer = network.account(chain.keystore)
    game = chain.open_game(signer)
    if game.credit_of(signer.address) == 0:
        raise CommandError(f"the contract owes nothing to {signer.address}: wait until a job or a game has ended.")
    amount, receipt = game.withdraw()
    if json:
        output.show_json({"account": signer.address, "amount_wei": str(amount), "transaction": receipt.transaction})
    else:
        output.show_facts("Withdrawn", {"amount": in_ether(amount), "to": signer.address})


def _plain_account(game: VerificationGame, who: ChecksumAddress) -> dict[str, object]:
    return {
        "account": who,
        "balance_wei": str(game.node.balance(who)),
        "credit_wei": str(game.credit_of(who)),
    }
