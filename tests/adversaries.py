"""Dishonest parties of the tests alone: parts of an honest role's context that publish another log than the trainer has
written, keep back what they say they publish, or send what no hash supports."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from roundlog.commitments import node_hash
from roundlog.execution import RunningStep, StoppedError
from roundlog.log import Decision, Entries
from roundlog.number_format import FLOAT32, Format
from roundlog.operators import Inexact, operator
from roundlog.program import Program
from roundlog.rounding import Recorder
from roundlog.training import Job
from tiebreak.contract.enums import Side
from tiebreak.contract.structs import Descent, JobView, NextRoot
from tiebreak.roles.background_jobs import Priority
from tiebreak.roles.context import RoleContext
from tiebreak.roles.engine import DisputeTrees
from tiebreak.roles.long_work import PublishedAddresses
from tiebreak.roles.notices import Progress
from tiebreak.roles.trainer_role import SealedClaim, TrainerRole
from tiebreak.roles.transaction_queue import Order, TransactionQueue
from tiebreak.store import Store
from tiebreak.strategy import Leaves
from tiebreak_demo.adversary.engines import BentExecutor, execution_of, lying

from tests.engine.forged_logs import Steps, rewrite


class CheatingQueue(TransactionQueue):
    """A queue that sends bisection moves with two nodes swapped, which no hash supports."""

    def put(self, order: Order) -> bool:
        if order.call.function == "bisect":
            game, move = order.call.arguments
            assert isinstance(move, Descent)
            swapped = replace(move, mine=(move.mine[1], move.mine[0], *move.mine[2:]))
            order = replace(order, call=replace(order.call, arguments=(game, swapped)))
        return super().put(order)


def cheating(context: RoleContext) -> RoleContext:
    """Return the context of a party that sends wrong children of its nodes."""
    return replace(context, make_queue=CheatingQueue)


class _FabricatedLeaves(Leaves):
    """A claim of a root with nothing below it but its row and its last leaf: no other leaf can ever be opened."""

    def __init__(self, payloads: Sequence[bytes]) -> None:
        super().__init__(payloads)
        self._claimed = _fabricated(super().as_next_root(), payloads[-1])

    @property
    def root(self) -> bytes:
        return self._claimed.root

    def as_next_root(self) -> NextRoot:
        return self._claimed


def _with_fabricated(trees: DisputeTrees) -> DisputeTrees:
    """Return all of the trees that a claim reads, and no more."""
    return cast(DisputeTrees, SimpleNamespace(claim=_FabricatedLeaves(trees.claim.payloads)))


class _FabricatedClaim(SealedClaim):
    def seal(self, posted: JobView, trees: DisputeTrees, priority: Priority) -> Progress:
        return super().seal(posted, _with_fabricated(trees), priority)


class _FabricatingTrainer(TrainerRole):
    def __init__(self, context: RoleContext, job: int) -> None:
        super().__init__(context, job)
        self._sealed = _FabricatedClaim(self, self.long_work, self._run, self._publishing)

    def _commit(self, posted: JobView, trees: DisputeTrees, addresses: PublishedAddresses) -> Progress:
        return super()._commit(posted, _with_fabricated(trees), addresses)


def fabricating_trainer(context: RoleContext, job: int) -> TrainerRole:
    """Return a trainer that claims, openly or by a seal, a root with nothing below it but its last leaf."""
    return _FabricatingTrainer(context, job)


def _fabricated(claimed: NextRoot, final: bytes) -> NextRoot:
    """Return a root over a row and siblings of the last leaf that are made up."""
    proof = claimed.last_leaf_proof
    last = next(leaf for leaf in range(1 << len(proof)) if _folded(final, proof, leaf) == claimed.root)
    below = len(proof) - (len(claimed.row) - 1).bit_length()
    siblings = [_made_up(sibling) for sibling in proof[:below]]
    nodes = [_made_up(node) for node in claimed.row]
    nodes[last >> below] = _folded(final, tuple(siblings), last & ((1 << below) - 1))
    row, place = tuple(nodes), last >> below
    while len(nodes) > 1:
        siblings.append(nodes[place ^ 1])
        nodes = [node_hash(nodes[i], nodes[i + 1]) for i in range(0, len(nodes), 2)]
        place >>= 1
    return NextRoot(root=nodes[0], last_leaf_proof=tuple(siblings), row=row)


def _made_up(node: bytes) -> bytes:
    return sha256(b"made up" + node).digest()


def _folded(payload: bytes, proof: tuple[bytes, ...], leaf: int) -> bytes:
    """Return the root that the proof of a leaf leads to."""
    node = sha256(b"\x00" + payload).digest()
    for bit, sibling in enumerate(proof):
        node = node_hash(sibling, node) if leaf >> bit & 1 else node_hash(node, sibling)
    return node


def spoiling(store: Store, spoil: Callable[[Path], None]) -> Store:
    """Return a store that publishes a changed copy in place of a log. spoil: changes the files of the copy."""
    return cast(Store, _SpoilingStore(store, spoil))


class _SpoilingStore:
    def __init__(self, store: Store, spoil: Callable[[Path], None]) -> None:
        self._store, self._spoil = store, spoil

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def add_directory(self, path: Path) -> str:
        return self._store.add_directory(self._spoiled(path))

    def address_of_directory(self, path: Path) -> str:
        return self._store.address_of_directory(self._spoiled(path))

    def _spoiled(self, path: Path) -> Path:
        if path.name == "log":
            copy = path.with_name("spoiled-log")
            if not copy.exists():
                shutil.copytree(path, copy)
                self._spoil(copy)
            path = copy
        return path


def withholding(store: Store, *, log: bool = True, model: bool = True) -> Store:
    """Return a store that names the right addresses of a log, of a model or of both, and does not publish them."""
    return cast(Store, _WithholdingStore(store, log, model))


class _WithholdingStore:
    def __init__(self, store: Store, log: bool, model: bool) -> None:
        self._store, self._log, self._model = store, log, model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def add_directory(self, path: Path) -> str:
        return self._store.address_of_directory(path) if self._log else self._store.add_directory(path)

    def add_file(self, path: Path) -> str:
        return self._store.address_of_file(path) if self._model else self._store.add_file(path)


def log_forging_trainer(context: RoleContext, job: int) -> TrainerRole:
    """Return a trainer that trains honestly, but publishes a log with up and down swapped in every decision."""
    return TrainerRole(replace(context, store=spoiling(context.store, _forge)), job)


def _forge(log_dir: Path) -> None:
    """Swap up and down in every decision of a log. Inexact operators without a decision get one for their first
    element, because a small step may have no ambiguous element."""
    job = Job.read(log_dir.parent.parent / "job")
    inexact = [
        q for q, node in enumerate(job.program.nodes) if node.type.numel and isinstance(operator(node.op), Inexact)
    ]

    def forge(steps: Steps) -> None:
        for entries in steps.values():
            turned = {q: _turned(found) for q, found in entries.items()}
            entries |= dict.fromkeys(inexact, _INVENTED) | turned

    honest = log_dir.rename(log_dir.with_name("honest-log"))
    rewrite(job, honest, log_dir, forge)
    shutil.rmtree(honest)


_INVENTED = Entries(np.zeros(1, np.int64), np.full(1, Decision.UP, np.uint8), np.zeros(0, np.uint32))


def _turned(entries: Entries) -> Entries:
    decisions = entries.decisions.copy()
    two_sided = decisions != int(Decision.VALUE)
    decisions[two_sided] = int(Decision.UP) + int(Decision.DOWN) - decisions[two_sided]
    return Entries(entries.indices, decisions.astype(np.uint8), entries.values)


def hiding_trainer(context: RoleContext, job: int) -> TrainerRole:
    """Return a trainer that hides that its run stops."""
    execution = execution_of(lambda posted: hiding(posted.program, posted.spec.f32_format))
    return TrainerRole(lying(context, execution, Side.TRAINER), job)


def hiding(program: Program, f32_format: Format = FLOAT32) -> BentExecutor:
    """Return an executor that continues after a stop, with ones in place of missing values."""

    def compute(running: RunningStep, index: int) -> None:
        try:
            running.compute(index)
        except StoppedError as error:
            if isinstance(running.rounding, Recorder):
                running.rounding.entries.pop(index, None)
            output = error.output.clone()
            if output.is_floating_point():
                output[~output.isfinite()] = 1.0
            running.values[index] = output
            if program.nodes[index].op == "store":
                running.states.append(output)

    return BentExecutor(program, f32_format, compute=compute)
