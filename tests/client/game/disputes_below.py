"""Whole games about single steps of random programs, between an honest party and somebody who is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from roundlog.commitments import state_root, tensor_root
from roundlog.data import data_tree, held
from roundlog.descriptors import program_root
from roundlog.execution import StepExecutor
from roundlog.operators import StepInputs
from roundlog.program import Program
from roundlog.spec import TrainingSpec
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from tiebreak.contract.enums import Outcome, Phase, Side
from tiebreak.contract.structs import GameView
from tiebreak.game.moves import (
    Bisect,
    ClaimTimeout,
    Decision,
    DisputeSum,
    Helpless,
    InTurn,
    Move,
    Need,
    NeedChunk,
    NeedRow,
    OpenLevel,
    OpenOperator,
    OpenPartials,
    PostChunk,
    ProveElement,
    ProveSegment,
    ProveStore,
)
from tiebreak.game.strategy import Known, next_move
from tiebreak.roles.engine import DisputeTrees
from tiebreak_demo.adversary.engines import execution_of

from tests.client.game.contract_model import ContractModel
from tests.client.game.model_trees import Refused
from tests.engine.microbatch.random_programs import make


def job_of(program: Program, inputs: StepInputs) -> Job:
    """A job of one step of a program without state."""
    dataset = {name: held(field) for name, field in zip(program.data_names, inputs.data, strict=True)}
    initial = {name: torch.zeros(kind.shape, dtype=kind.dtype.torch_dtype) for name, kind in stored(program).items()}
    schedule = torch.zeros(1, 0)
    spec = TrainingSpec(
        steps=1,
        interval=1,
        program_root=program_root(program),
        operator_count=len(program.nodes),
        initial_state_root=state_root(initial.values()),
        state_count=len(initial),
        data_root=data_tree(dataset.values()).root,
        data_rows=program.batch_size,
        batch_size=program.batch_size,
        schedule_root=tensor_root(schedule),
        seed=inputs.seed,
    )
    return Job(program=program, spec=spec, initial=initial, schedule=schedule, dataset=dataset)


def stored(program: Program) -> dict[str, object]:
    stores = [node for node in program.nodes if node.op == "store"]
    return {name: node.type for name, node in zip(program.state_names, stores, strict=True)}


def random_job(seed: int, operators: int = 25) -> Job:
    made = make(seed, operators)
    return job_of(made.program, made.inputs)


def trees_of(job: Job, room: Path, executor: StepExecutor | None = None) -> DisputeTrees:
    options = RunOptions(continue_after_stop=True)
    if executor is not None:
        options = replace(options, execution=execution_of(lambda job: executor))
    result = Auditor(job, room, options).run()
    return DisputeTrees(job, room, result.state_roots, options)


@dataclass
class Player:
    """One side. `twist` may change a move before it is sent, or drop it."""

    side: Side
    trees: DisputeTrees
    twist: Callable[[GameView, Move], Move | None] | None = None

    def __post_init__(self) -> None:
        self.known = Known({(): self.trees.claim})

    def decide(self, model: ContractModel) -> Decision:
        self.known.rows = None
        while True:
            decision = next_move(model.view(), self.side, self.known, model.now)
            if isinstance(decision, Need):
                self.known.trees[decision.place] = self.trees.tree(decision.place)
            elif isinstance(decision, NeedChunk):
                self.known.chunk = model.posted
            elif isinstance(decision, NeedRow):
                self.known.rows = tuple(model.rows)
            else:
                return decision

    def move(self, model: ContractModel) -> Move | None:
        decision = self.decide(model)
        if not isinstance(decision, Move):
            return None
        return self.twist(model.view(), decision) if self.twist is not None else decision


def send(model: ContractModel, move: Move) -> None:
    match move:
        case InTurn(moves):
            for one in moves:
                send(model, one)
        case Bisect(descent):
            model.bisect(descent)
        case OpenLevel(side, leaf, root):
            model.open_level(side, leaf, root)
        case OpenOperator(side, opening):
            model.open_operator(side, opening)
        case ProveStore(payload, proof):
            model.prove_store(payload, proof)
        case PostChunk(chunk):
            model.post_chunk(chunk)
        case ProveElement(proof):
            model.prove_element(proof)
        case DisputeSum(descriptor, chunk, position):
            model.dispute_sum(descriptor, chunk, position)
        case OpenPartials(side, opening):
            model.open_partials(side, opening)
        case ProveSegment(proof):
            model.prove_segment(proof)
        case ClaimTimeout():
            model.claim_timeout()
        case _:
            raise AssertionError(move)


def new_game(trainer: DisputeTrees, challenger: DisputeTrees, **options: object) -> ContractModel:
    claim = trainer.claim
    last = claim.payloads[-1], claim.as_next_root().last_leaf_proof, claim.as_next_root().row
    return ContractModel(trainer.job.spec, (claim.root, challenger.claim.root), last, **options)  # type: ignore[arg-type]


def play(model: ContractModel, honest: Player, other: Player, *, last: Side | None = None) -> list[Move]:
    """Lets both move whenever they can; the honest one's moves have to be accepted. Who falls silent loses its time.
    last: the side that opens only after the other has. Returns all moves that were made."""
    made: list[Move] = []
    for _ in range(300):
        if model.phase in (Phase.OVER, Phase.REFEREE):
            return made
        move = honest.move(model)
        if move is not None and not (
            last is honest.side and model.phase is Phase.OPENING and model.running[honest.side.other]
        ):
            send(model, move)
            made += singly(move)
            continue
        theirs = other.move(model)
        if theirs is not None:
            try:
                send(model, theirs)
                made += singly(theirs)
                continue
            except Refused:
                pass
        if move is not None:
            send(model, move)
            made += singly(move)
            continue
        assert not isinstance(honest.decide(model), Helpless)
        # Nobody moves: the other one lets its time run out.
        model.now = max(deadline for deadline in model.view().deadlines) + 1
        decision = honest.decide(model)
        assert isinstance(decision, ClaimTimeout), decision
        send(model, decision)
        made.append(decision)
    raise AssertionError("the game does not end")


def singly(move: Move) -> tuple[Move, ...]:
    return move.moves if isinstance(move, InTurn) else (move,)


def won(side: Side) -> Outcome:
    return Outcome.TRAINER_WON if side is Side.TRAINER else Outcome.CHALLENGER_WON
