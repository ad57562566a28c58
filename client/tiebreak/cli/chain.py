"""`tiebreak devnet`, `deploy`, `status` and `withdraw`: the chain, seen and used."""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from tiebreak.cli import network, options
from tiebreak.cli.failures import CommandError
from tiebreak.cli.quantities import in_ether, in_time

if TYPE_CHECKING:
    from eth_typing import ChecksumAddress

    from tiebreak.chain.game import VerificationGame
    from tiebreak.chain.records import Game, Job


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(status)
    app.command()(withdraw)
    app.command()(devnet)
    app.command()(deploy)


def devnet(
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port on the loopback interface; 0 for any.")] = 8545,
    kind: Annotated[str, typer.Option(help="anvil, embedded, or auto: anvil if it is installed.")] = "auto",
    json: options.Json = False,
) -> None:
    """Run a development chain with the contract on it, until interrupted."""
    from tiebreak.chain.accounts import devnet_account
    from tiebreak.chain.devnet import start_devnet
    from tiebreak.chain.devnet_accounts import ACCOUNTS, BALANCE
    from tiebreak.chain.errors import DevnetError
    from tiebreak.chain.game import VerificationGame
    from tiebreak.chain.node import connect
    from tiebreak.chain.sender import Sender
    from tiebreak.cli import output

    signal.signal(signal.SIGTERM, _interrupt)
    with start_devnet(port, kind=kind) as chain:
        try:
            accounts = [devnet_account(index) for index in range(ACCOUNTS)]
            game = VerificationGame.deploy(Sender(connect(chain.url), accounts[-1]))
            if json:
                output.show_json(
                    {
                        "kind": chain.kind,
                        "chain": chain.url,
                        "contract": game.address,
                        "accounts": [{"address": one.address, "private_key": bytes(one.key)} for one in accounts],
                    }
                )
            else:
                output.show_facts(f"Development chain ({chain.kind})", {"chain": chain.url, "contract": game.address})
                output.show_line("")
                output.show_facts(
                    f"Accounts with {in_ether(BALANCE)} each, and their keys, which everybody knows",
                    {one.address: bytes(one.key) for one in accounts},
                )
                output.show_line("")
                output.show_line("To use it in another terminal:")
                output.show_line(f"  export TIEBREAK_CHAIN={chain.url} TIEBREAK_CONTRACT={game.address}")
                output.show_line("Ctrl-C ends the chain; nothing of it is kept.")
            output.flush()
            while chain.running:
                time.sleep(0.2)
        except KeyboardInterrupt:
            return
        raise DevnetError("the development chain has ended by itself: start it again.")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def deploy(
    chain: network.Chain = network.DEFAULT_CHAIN,
    keystore: network.Keystore = None,
    confirmations: network.Confirmations = 0,
    json: options.Json = False,
) -> None:
    """Put a new contract on a chain. It belongs to nobody; all who use its address share it."""
    from tiebreak.chain.game import VerificationGame
    from tiebreak.chain.node import connect
    from tiebreak.chain.sender import Sender
    from tiebreak.cli import output

    signer = network.account(keystore)
    game = VerificationGame.deploy(Sender(connect(chain, confirmations=confirmations), signer))
    if json:
        output.show_json({"contract": game.address, "chain_id": game.node.chain_id})
    else:
        output.show_facts("Deployed", {"contract": game.address, "chain id": game.node.chain_id})


def status(
    job: Annotated[int | None, typer.Argument(min=1, metavar="[JOB]", help="Number of a job.")] = None,
    account: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Show the balance and the credit of an account.")
    ] = None,
    chain: network.Chain = network.DEFAULT_CHAIN,
    contract: network.Contract = None,
    confirmations: network.Confirmations = 0,
    json: options.Json = False,
) -> None:
    """Show the state of the contract, or of one job and its games."""
    from tiebreak.cli import output

    who = network.address(account, "the account") if account is not None else None
    game = network.open_game(chain, contract, confirmations, None)
    if job is not None:
        found = find_job(game, job)
        games = {number: game.game(number) for number in game.games_of(job)}
        now = game.node.head().timestamp
        if json:
            output.show_json(_plain_job(job, found) | {"games": [_plain_game(n, g) for n, g in games.items()]})
        else:
            _show_job(job, found, games, now)
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
    keystore: network.Keystore = None,
    chain: network.Chain = network.DEFAULT_CHAIN,
    contract: network.Contract = None,
    confirmations: network.Confirmations = 0,
    json: options.Json = False,
) -> None:
    """Fetch what the contract owes to your account: rewards, returned bonds, shares of lost ones."""
    from tiebreak.cli import output

    signer = network.account(keystore)
    game = network.open_game(chain, contract, confirmations, signer)
    if game.credit_of(signer.address) == 0:
        raise CommandError(f"the contract owes nothing to {signer.address}: wait until a job or a game has ended.")
    amount, receipt = game.withdraw()
    if json:
        output.show_json({"account": signer.address, "amount_wei": str(amount), "transaction": receipt.transaction})
    else:
        output.show_facts("Withdrawn", {"amount": in_ether(amount), "to": signer.address})


def find_job(game: VerificationGame, number: int) -> Job:
    """A job of the contract. Raises CommandError if there is none of that number."""
    count = game.job_count()
    if not 1 <= number <= count:
        raise CommandError(f"there is no job {number}: the contract has {count} so far (`tiebreak job list`).")
    return game.job(number)


def _plain_account(game: VerificationGame, who: ChecksumAddress) -> dict[str, object]:
    return {
        "account": who,
        "balance_wei": str(game.node.balance(who)),
        "credit_wei": str(game.credit_of(who)),
    }


def _plain_job(number: int, job: Job) -> dict[str, object]:
    terms = job.terms
    return {
        "job": number,
        "status": job.status.name,
        "customer": job.customer,
        "referee": job.spec.referee,
        "job_cid": job.job_cid,
        "spec_hash": job.spec_hash,
        "steps": job.spec.training.steps,
        "interval": job.spec.training.interval,
        "reward_wei": str(terms.reward),
        "trainer_bond_wei": str(terms.trainer_bond),
        "challenger_bond_wei": str(terms.challenger_bond),
        "commit_deadline": job.commit_deadline,
        "claim": None
        if not job.claim.committed_at
        else {
            "trainer": job.claim.trainer,
            "checkpoint_root": job.claim.checkpoint_root,
            "final_state_root": job.claim.final_state_root,
            "log_cid": job.claim.log_cid,
            "model_cid": job.claim.model_cid,
            "challenge_deadline": job.claim.challenge_deadline,
        },
        "attestations": job.attestations,
        "live_games": job.live_games,
    }


def _plain_game(number: int, game: Game) -> dict[str, object]:
    return {
        "game": number,
        "challenger": game.challenger,
        "phase": game.phase.name,
        "level": game.current.level.name,
        "index": game.current.index,
        "outcome": game.outcome.name,
        "reason": game.reason.name,
        "deadlines": {"trainer": game.deadlines[0], "challenger": game.deadlines[1], "referee": game.referee_deadline},
    }


def _show_job(number: int, job: Job, games: dict[int, Game], now: int) -> None:
    from tiebreak.cli import output

    terms, claim = job.terms, job.claim
    facts: dict[str, object] = {
        "status": job.status.name,
        "steps": f"{job.spec.training.steps}, a checkpoint every {job.spec.training.interval}",
        "reward": in_ether(terms.reward),
        "bonds": f"trainer {in_ether(terms.trainer_bond)}, challenger {in_ether(terms.challenger_bond)}",
        "customer": job.customer,
        "referee": job.spec.referee,
        "files": job.job_cid,
    }
    if not claim.committed_at:
        facts["commit by"] = _deadline(job.commit_deadline, now)
    else:
        facts |= {
            "trainer": claim.trainer,
            "checkpoint root": claim.checkpoint_root,
            "log": claim.log_cid,
            "model": claim.model_cid,
            "challenge by": _deadline(claim.challenge_deadline, now),
            "attestations": job.attestations,
        }
    output.show_facts(f"Job {number}", facts)
    if games:
        output.show_line("")
        output.show_table(
            "Games",
            ["game", "challenger", "phase", "found at", "next move by", "outcome"],
            [
                [
                    number,
                    game.challenger,
                    game.phase.name,
                    f"{game.current.level.name} {game.current.index}",
                    _next_move(game, now),
                    f"{game.outcome.name} ({game.reason.name})" if game.outcome else "",
                ]
                for number, game in games.items()
            ],
        )


def _next_move(game: Game, now: int) -> str:
    due = {"trainer": game.deadlines[0], "challenger": game.deadlines[1], "referee": game.referee_deadline}
    running = [f"{who}, {_deadline(deadline, now)}" for who, deadline in due.items() if deadline]
    return "; ".join(running) if not game.outcome else ""


def _deadline(instant: int, now: int) -> str:
    return f"in {in_time(instant - now)}" if instant >= now else f"{in_time(now - instant)} ago"
