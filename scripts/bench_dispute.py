"""The cost of a whole dispute: from a commitment to 80,000 training steps down to one number, in real transactions.

    .venv/bin/python scripts/bench_dispute.py [--chain anvil|embedded] [--layers 10] [--segment-gas GAS] [--json FILE]

The job is a GPT whose step has over 5,000 operators. Nobody here trains it for 80,000 steps: one interval is executed,
from the initial state, by an honest auditor and by a trainer who lies about one number in one step of it, and the trees
above that interval are made up around it. What happens on the chain is the same as in a run that was trained to its
end: every transaction of a dispute, from the commitment to the verdict, is sent, mined and counted. The contract has to
find the operator and the element that were lied about, in at most 22 transactions and 4,500,000 gas.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import import_module
from pathlib import Path

import torch
from roundlog.adjudication.adjudicate import segments
from roundlog.commitments import state_root
from roundlog.descriptors import describe
from roundlog.descriptors.descriptor import REDUCTIONS
from roundlog.examples.gpt import gpt
from roundlog.storage import save_tensors
from roundlog.training.job import Job
from roundlog.training.options import DEFAULT_OPTIONS, RunOptions
from roundlog.training.repetition import replay_interval
from roundlog.training.run import Run
from roundlog.training.run_files import checkpoint_path
from tiebreak.contract.contract_watch import find_chunk, find_rows
from tiebreak.contract.enums import Level, Outcome, Phase, Side
from tiebreak.contract.events import Challenged, JobPosted
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import PostedSpec, Terms
from tiebreak.devnet.launcher import start_devnet
from tiebreak.roles.engine import DisputeTrees
from tiebreak.roles.player import call_of
from tiebreak.rpc.answers import TransactionReceipt
from tiebreak.rpc.node import ChainNode, connect
from tiebreak.strategy import Known, Need, NeedChunk, NeedRow, next_move
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender
from tiebreak_demo.adversary.engines import Lie, execution_of, lying_trees, tampered

STEPS, INTERVAL = 80_000, 16
LIED_INTERVAL, LIED_STEP = 3_210, 11
"""The interval that is executed, and the step of it that is lied about."""

MOST_MOVES, MOST_GAS = 22, 4_500_000
TERMS = Terms(
    reward=10**15,
    trainer_bond=10**15,
    challenger_bond=10**15,
    commit_window=10**6,
    challenge_window=10**6,
    clock_allowance=10**5,
    referee_allowance=10**5,
    concurrent_games=16,
)

ORDER = ("claim", *(level.name for level in Level), "proof")


@dataclass
class Bill:
    """Costs of the transactions of one dispute, by level."""

    what: str
    operator: str
    element: int
    moves: Counter[str] = field(default_factory=Counter)
    gas: Counter[str] = field(default_factory=Counter)
    largest: int = 0

    def add(self, part: str, receipt: TransactionReceipt) -> None:
        self.moves[part] += 1
        self.gas[part] += receipt.gas_used
        self.largest = max(self.largest, receipt.gas_used)


def the_job(layers: int) -> Job:
    data = Path(__file__).resolve().parent.parent / "docs" / "protocol.md"
    return Job.from_task(
        lambda: gpt(data=data, steps=STEPS, interval=INTERVAL, batch_size=4, context=32, layers=layers)
    )


def room_before(job: Job, directory: Path) -> list[bytes]:
    """A run directory in which nothing is left of the intervals before the lied one but their roots, and the state that
    the last of them led to: the initial one."""
    roots = [sha256(b"interval %d" % i).digest() for i in range(LIED_INTERVAL - 1)]
    roots.append(state_root(job.initial.values()))
    Run(job, directory)
    (directory / "roots").write_bytes(b"".join(roots))
    save_tensors(checkpoint_path(directory, LIED_INTERVAL * INTERVAL), dict(job.initial))
    return roots


def trees(job: Job, directory: Path, name: str, options: RunOptions = DEFAULT_OPTIONS) -> DisputeTrees:
    """The dispute trees of a run that executes one interval; the others are made up."""
    before = room_before(job, directory)
    steps = replay_interval(Run(job, directory, options), LIED_INTERVAL)
    after = [sha256(f"{name} {i}".encode()).digest() for i in range(LIED_INTERVAL + 1, STEPS // INTERVAL)]
    return DisputeTrees(job, directory, [*before, steps[-1], *after], options)


def lying(lie: Lie) -> RunOptions:
    """Options of a party that lies."""
    execution = execution_of(lambda job: tampered(job.program, job.spec.f32_format, [lie]))
    return RunOptions(execution=execution)


def lies(job: Job, honest: DisputeTrees) -> dict[str, Lie]:
    """Three places of the step where one number is another one, and the next state notices: by a few percent or, where
    that vanishes in every place, by so much that it cannot. The model's first weights differ from machine to machine,
    and with them what vanishes: the longest sums are those of the gradients' squares, and as long as gradients need no
    clipping, it does not matter what their norm is."""
    step = LIED_INTERVAL * INTERVAL + LIED_STEP
    right = honest.trace(step).states
    found = {}
    for what, operators in kinds(job).items():
        outputs = honest.outputs(step, operators)
        for operator in operators:
            largest_first = outputs[operator].reshape(-1).abs().argsort(descending=True)[:4].tolist()
            tries = [Lie(step=step, operator=operator, element=element, bit=19) for element in largest_first]
            # In place of the largest of all: a sum of squares like this one is far above what is clipped.
            great = largest_bits(outputs[operator])
            tries.append(Lie(step=step, operator=operator, element=largest_first[0], claimed=great))
            # A lie that vanishes in a later rounding cannot be disputed.
            noticed = (lie for lie in tries if trees_of(job, honest.run_dir, lie).trace(step).states != right)
            if (first := next(noticed, None)) is not None:
                found[what] = first
                break
        else:
            raise AssertionError(f"no lie about {what} changes the next state")
    return found


def largest_bits(output: torch.Tensor) -> int:
    """The bits of a number a million times larger than the largest of an output, and at least a million."""
    number = 1e6 * (1 + output.abs().max())
    return int(number.to(torch.float32).reshape(1).view(torch.int32).item())


def kinds(job: Job) -> dict[str, list[int]]:
    """Subjects of lies, each with the operators in which it is looked for."""
    terms = {}
    for q in range(len(job.program.nodes)):
        descriptor = describe(job.program, q)
        if descriptor.family in REDUCTIONS:
            terms[q] = len(segments(descriptor))
    products = [q for q in terms if job.program.nodes[q].op == "matmul"]
    short = [q for q in products if terms[q] == 1]
    longest = max(terms.values())
    return {
        "a product in one piece": sorted(short, key=lambda q: -job.program.nodes[q].type.numel)[:8],
        "a gradient in several": sorted(products, key=lambda q: -terms[q])[:8],
        "the longest sum": [q for q in terms if terms[q] == longest],
    }


def trees_of(job: Job, directory: Path, lie: Lie) -> DisputeTrees:
    """The dispute trees of a lie, for single steps only."""
    return DisputeTrees(job, directory, [bytes(32)], lying(lie))


def dispute(node: ChainNode, job: Job, lie: Lie, bill: Bill, honest: DisputeTrees, lying: DisputeTrees) -> None:
    """Plays one claim, one challenge and one game by both sides' own strategy.

    Raises AssertionError unless the contract finds the lie."""
    customer, trainer, auditor = (Sender(node, devnet_account(i)) for i in range(3))
    contract = VerificationGame.deploy(customer)
    spec = PostedSpec(job.spec, customer.address, contract.adjudicator())
    number = contract.event(contract.send(contract.post_job(spec, TERMS, "bafy")), JobPosted).job
    sides = {Side.TRAINER: (contract.by(trainer), lying), Side.CHALLENGER: (contract.by(auditor), honest)}
    claim = lying.claim
    committed = contract.paying(
        "commit",
        number,
        spec_hash=spec.hash,
        claimed=claim.as_next_root(),
        final_state_root=claim.payloads[-1],
        log_cid="bafy",
        model_cid="bafy",
        bond=TERMS.trainer_bond,
    )
    bill.add("claim", contract.by(trainer).send(committed))
    roots = {"claimed_root": claim.root, "checkpoint_root": honest.claim.root}
    paid = {"spec_hash": spec.hash, "bond": TERMS.challenger_bond}
    challenged = contract.paying("challenge", number, **paid, **roots)
    receipt = contract.by(auditor).send(challenged)
    game_id = contract.event(receipt, Challenged).game
    bill.add("claim", receipt)

    known = {side: Known({(): own.claim}) for side, (_, own) in sides.items()}
    while (game := contract.game(game_id)).phase is not Phase.OVER:
        side = next(side for side in Side if game.deadlines[side])
        own_contract, own = sides[side]
        decision = next_move(game, side, known[side], node.now())
        if isinstance(decision, Need):
            known[side].trees[decision.place] = own.tree(decision.place)
        elif isinstance(decision, NeedChunk):
            known[side].chunk = find_chunk(contract, game_id, game)
        elif isinstance(decision, NeedRow):
            known[side].rows = find_rows(contract, game_id, game)
        else:
            part = "proof" if game.phase in (Phase.POSTING, Phase.PROVING) else game.current.level.name
            bill.add(part, own_contract.send(call_of(contract, game_id, decision)))
            known[side].rows = None

    assert game.outcome is Outcome.CHALLENGER_WON, game.outcome
    interval, step, operator = (level.index for level in game.levels[:3])
    assert (interval, step, operator) == (LIED_INTERVAL, LIED_STEP, lie.operator)
    elements = [event.element for event in contract.events(game=game_id) if hasattr(event, "element")]
    assert elements == [lie.element], elements


def table(bills: list[Bill]) -> str:
    """A row a dispute, and for each level its transactions and its gas."""
    lines = ["| dispute about | " + " | ".join(ORDER) + " | all |", "|---" * (len(ORDER) + 2) + "|"]
    for bill in bills:
        cells = [f"{bill.moves[part]}: {bill.gas[part]:,}" for part in ORDER]
        lines.append(
            f"| {bill.what}: {bill.operator}, element {bill.element:,} | "
            + " | ".join(cells)
            + f" | **{bill.moves.total()}: {bill.gas.total():,}** |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    # By its name: the package exports a function of the same one.
    descriptors = import_module("roundlog.descriptors.describe")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chain", choices=("auto", "anvil", "embedded"), default="auto")
    parser.add_argument("--layers", type=int, default=10, help="of the GPT; 10 give over 5,000 operators")
    parser.add_argument("--segment-gas", type=int, default=descriptors.GAS_BUDGET, help="largest estimate of a segment")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    descriptors.GAS_BUDGET = options.segment_gas
    job = the_job(options.layers)
    print(f"{STEPS:,} steps of {len(job.program.nodes):,} operators, a checkpoint every {INTERVAL} steps", flush=True)
    bills = []
    with tempfile.TemporaryDirectory() as name, start_devnet(kind=options.chain) as devnet:
        room = Path(name)
        node = connect(devnet.url)
        honest = trees(job, room / "honest", "auditor")
        for number, (what, lie) in enumerate(lies(job, honest).items()):
            told = lying_trees(trees(job, room / f"lie {number}", "trainer", lying(lie)), Side.TRAINER)
            bill = Bill(what, job.program.describe(lie.operator), lie.element)
            dispute(node, job, lie, bill, honest, told)
            bills.append(bill)
            print(
                f"{what}: {bill.moves.total()} moves, {bill.gas.total():,} gas, {bill.largest:,} the largest",
                flush=True,
            )
    print(f"\nTransactions and gas of each level, from commit to verdict ({devnet.kind}):\n\n{table(bills)}")
    if options.json is not None:
        options.json.write_text(json.dumps([vars(bill) for bill in bills], indent=1) + "\n")
    for bill in bills:
        assert bill.moves.total() <= MOST_MOVES and bill.gas.total() <= MOST_GAS, bill


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
