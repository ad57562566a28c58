"""`tiebreak post`, and the block that draws a share of a receipt's answers once the receipt is posted on a chain
(docs/receipt.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tiebreak.cli import network, output
from tiebreak.cli.failures import CommandError
from tiebreak.cli.option_groups import JSON, argument, command
from tiebreak.cli.receipt_files import account_text, read_receipt_file

if TYPE_CHECKING:
    from tiebreak.evaluation.evaluation_receipt import EvaluationReceipt
    from tiebreak.rpc.node import ChainNode

DISTANCE = 32
"""Blocks from that of a post to the one whose hash is the seed."""
POST = b"tiebreak post, version 1: "
"""Data of a post, before the digest of the receipt."""


@dataclass(frozen=True, slots=True)
class BlockBeacon:
    """A block whose hash is a seed, 0x and 64 hex digits, and the post of a receipt that has fixed its number."""

    seed: str
    block: int
    chain_id: int
    account: str
    earlier_transactions: int
    """Those that the account had sent before the post."""

    @property
    def odds(self) -> int:
        """Bound on the chance of a draw that meets no wrong answer: one in so many. Of an account that has posted k
        times, each time for another draw, 1 / (k (k + 1)) of 5 % each add up to at most 5 %."""
        return 20 * (self.earlier_transactions + 1) * (self.earlier_transactions + 2)

    def __str__(self) -> str:
        return (
            f"It is the hash of block {self.block} of chain {self.chain_id}, which a post by {self.account} has fixed; "
            f"the {self.earlier_transactions} transactions that this account had sent before are counted as other "
            "draws. Posts of its author's other accounts are not, nor is what the maker of that block could choose."
        )


def read_beacon(node: ChainNode, posted: str, read: EvaluationReceipt) -> BlockBeacon:
    """Return the beacon that a transaction has fixed by posting a receipt. posted: its hash in hex. Raises
    CommandError, ChainError."""
    if read.signer is None:
        raise CommandError("nobody has signed the receipt, and anybody may post it often: ask for a signed one.")
    account = account_text(read.signer)
    if not re.fullmatch("0x[0-9a-fA-F]{64}", posted):
        raise CommandError(f"{posted[:80]!r} is no transaction's hash: give 0x and 64 hex digits, as `post` prints it.")
    name = f"transaction {posted}"
    found = node.transaction(bytes.fromhex(posted[2:]))
    if found is None:
        raise CommandError(f"{node.name} knows no {name}: check the hash, and that the node is of the post's chain.")
    if found.input != POST + read.digest:
        raise CommandError(f"{name} does not post the receipt, whose digest is 0x{read.digest.hex()}: name its post.")
    if found.sender != account:
        raise CommandError(f"{name} was sent by {found.sender}, and {account} has signed the receipt: name its post.")
    if found.block is None:
        raise CommandError(f"{name} is in no block yet: wait until one has it.")
    place, due = node.block(found.block), found.block + DISTANCE
    if place is None or place.hash != found.block_hash:
        raise CommandError(f"{name} was in a block {found.block} that the chain has taken back: wait for another one.")
    if (missing := due + node.confirmations - node.head().number) > 0:
        raise CommandError(
            f"{name} is in block {found.block}, and block {due}, whose hash draws the share, is not there and final: "
            f"wait for {missing} more blocks."
        )
    last = node.block(due)
    if last is None:
        raise CommandError(f"{node.name} has taken blocks back: ask again.")
    if node.agreement.undecided:
        raise CommandError(f"{node.agreement.contradiction}, so that the draw is not known: ask more nodes.")
    return BlockBeacon(f"0x{last.hash.hex()}", due, node.chain_id, account, found.nonce)


@command("post", "tiebreak post eval.json --keystore key.json")
def post(
    file: Path = argument("FILE", "Receipt of an evaluation, signed by your account."),
    *,
    account: network.KeyOptions,
    chain: network.ChainOptions,
    json: bool = JSON,
) -> None:
    """Post the digest of an evaluation's receipt on a chain, in a transaction to yourself. The hash of the 32nd block
    after it draws the answers that `verify --beacon chain` repeats.

    Whoever checks believes the draw the more, the fewer transactions the account has sent before: take a fresh one.
    """
    from tiebreak.evaluation.evaluation_receipt import EvaluationReceipt
    from tiebreak.transactions.sender import Sender

    read, key = read_receipt_file(file).receipt, account.key()
    if not isinstance(read, EvaluationReceipt) or read.signer is None or account_text(read.signer) != key.address:
        raise CommandError(f"{file} is no receipt of an evaluation signed by {key.address}: evaluate with --sign.")
    sent = Sender(chain.connect_final(), key).send(key.address, POST + read.digest)
    facts = {"transaction": sent.transaction, "block": sent.block, "draws": sent.block + DISTANCE}
    output.show_result(json, facts, f"Posted {file}")
