"""Rounds of real roles as processes on anvil, whose node, disks and lives go wrong."""

from __future__ import annotations

import atexit
import json
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import ClassVar

from tiebreak.cli.summary_text import UNDECIDED
from tiebreak.contract.enums import AuditStatus, JobStatus, Phase, Side
from tiebreak.contract.structs import AuditView, GameView
from tiebreak.roles.sealing import audit_seal

from tests.chaos.anvil import NodeError
from tests.chaos.faulty_node import Weather
from tests.chaos.jobs import read_roots, write_jobs
from tests.chaos.judge import judge, won_appeals
from tests.chaos.machine import Round
from tests.chaos.misbehaving import Kind
from tests.chaos.parties import Party, slowness
from tests.chaos.plans import FAULTS, Audits, Trouble, plan
from tests.chaos.stage import Stage

_LOOK = 0.1
_MOST_SECONDS = 150.0
"""After the storm, for whatever is left to do."""
_IDLE_SECONDS = 30.0
"""In calm weather, for one move of an honest party."""
_SILENT_SECONDS = 6.0
"""Without a move of a dishonest party, before the chain's clock is moved to the end of its time."""
_LARGEST_JUMP = 900
_POSTINGS = 12
_PAUSE = 0.25
"""Between two blocks."""


@cache
def written_jobs() -> Path:
    """All jobs, written once for all rounds."""
    directory = Path(tempfile.mkdtemp(prefix="tiebreak-chaos-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    write_jobs(directory)
    return directory


class Chaos(Round):
    """One job, posted while everything goes wrong; then a storm, then calm weather."""

    FAULTS = FAULTS
    STRIKES = 16
    IS_EXACT = False
    APPEALS: ClassVar[bool] = False

    def __init__(self, draw: Random, room: Path) -> None:
        super().__init__(draw, room)
        self.plan = plan(draw.getrandbits(64), appeals=self.APPEALS)
        self.told.append(self.plan.describe())
        self.stage = Stage(self.plan, room, written_jobs(), pause=_PAUSE)
        self.violations: list[str] = []
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._right_bytes: dict[Path, bytes] = {}
        """Of every block that was ever spoiled: it may be spoiled again before it is restored."""
        self._seen: dict[int, tuple[object, float]] = {}
        self._accused: set[str] = set()
        self._claimed_at = self._appealable_at = self._calm_since = 0.0
        self._began = time.monotonic()
        self.job = self.post()
        self.is_over = self.job is None
        if self.job is None:
            return
        self.stage.add_all(self.job)
        self.stage.set_weather(storm=True)
        for party in self.stage.parties.values():
            if party.name != "posting" and not party.running:
                party.start_again_at = time.monotonic() + self.draw.uniform(0.0, 1.5)

    def strike(self, fault: str, draw: Random) -> None:
        assert self.job is not None
        until = time.monotonic() + draw.uniform(0.3, 2.0)
        while time.monotonic() < until and not self.is_over:
            self._look(self.job)
        if not self.is_over and fault != "nothing":
            self._strike(Trouble(fault), draw)

    def end(self) -> list[str]:
        if self.job is not None:
            self._carry_to_the_end(self.job)
            self.violations += judge(self.stage, self.job, read_roots(written_jobs())[self.plan.job])
            self.told += [self.stage.contract.job(self.job).status.name, *self.games_and_audits(self.job)]
            self.counts["appeals won"] += len(won_appeals(self.stage, self.job))
        for party in self.stage.parties.values():
            if party.honest:
                self.violations += [f"{party.name} {what}" for what in party.problems + party.complaints()]
                helped = re.findall(r"has helped with (\d+) steps", party.said())
                self.counts["steps with two ranks"] += sum(map(int, helped))
        plan = self.plan
        self.counts.update(
            {
                "kills": sum(party.kills for party in self.stage.parties.values()),
                "reorganisations": self.stage.chain.reorganisations,
                "faults": sum(self.stage.faulty.faults.values()),
                "jobs with blind audits": plan.audits is Audits.BLIND,
                "jobs with states published": bool(plan.by_workers) and plan.trainer in (None, Kind.RESIGN),
                "flaws of gateways": sum(self.stage.gateway.flaws.values()) if self.stage.gateway is not None else 0,
                "requests": sum(self.stage.faulty.requests.values()),
            }
        )
        self.told.append(f"{time.monotonic() - self._began:.0f} s")
        return self.violations

    def close(self) -> None:
        self.stage.close()

    def post(self) -> int | None:
        """Let the customer post the job, in bad weather, killed now and then; returns the job's number."""
        stage, customer = self.stage, self.stage.posting()
        if self.plan.rival:
            self._give_number_away()
        for attempt in range(_POSTINGS):
            rate = self.plan.rates["customer"] if attempt < 4 else 0.0
            stage.faulty.weather("posting", Weather(rate, log_range=self.plan.log_range))
            customer.start()
            doomed = attempt < 2 and self.draw.random() < 0.3
            deadline = time.monotonic() + (self.draw.uniform(0.2, 3.0) if doomed else 60.0 * slowness())
            shaken = time.monotonic() + self.draw.uniform(0.5, 2.5) if attempt == 0 else 0.0
            while customer.running and time.monotonic() < deadline:
                time.sleep(_LOOK)
                if shaken and time.monotonic() > shaken:
                    shaken = 0.0
                    stage.chain.reorganise(1, put_back=self.draw.random() < 0.5)
            if customer.running and not doomed:
                customer.stop(None)
                self._accuse("posting", "posting did not end within 60 s")
            customer.kill(1e9)
            process = customer.process
            if process is not None and process.exitcode == 0:
                return int(re.findall(r"\"job\": (\d+)", customer.said())[-1])
        self._accuse("posting", f"the job could not be posted in {_POSTINGS} attempts: {customer.last_words()}")
        return None

    def _give_number_away(self) -> None:
        """Show a rival's job to those that look for jobs, and takes it back, so that its number is free again."""
        stage, before = self.stage, self.stage.chain.height
        stage.add_followers()
        for name in self.plan.following:
            stage.faulty.weather(name, Weather(log_range=self.plan.log_range))
            stage.parties[name].start()
        time.sleep(self.draw.uniform(0.5, 2.0))
        stage.chain.halt(3600)
        poster = threading.Thread(target=stage.post_rival)
        poster.start()
        deadline = time.monotonic() + 20 * slowness()
        while stage.contract.job_count() == 0 and time.monotonic() < deadline:
            stage.chain.rpc("evm_mine")
            before = stage.chain.height
            time.sleep(2 * _LOOK)
        poster.join()
        time.sleep(self.draw.uniform(0.2, 1.0))
        depth = stage.chain.height - before + 1
        stage.chain.reorganise(depth, put_back=False)
        stage.chain.halt(0)
        self.counts["numbers given away"] += 1

    def _look(self, job: int) -> None:
        """Mend what is due, starts again who has ended, and lets the chain's time pass where that is all there is."""
        self._mend(time.monotonic())
        for party in self.stage.parties.values():
            if party.name != "posting":
                party.look()
        self.is_over = self._is_over(job)
        if not self.is_over:
            self._pass_time(job, self._calm_since)
            time.sleep(_LOOK)

    def _carry_to_the_end(self, job: int) -> None:
        while self._due and not self.is_over:
            self._look(job)
        self.stage.set_weather(storm=False)
        self._calm_since = time.monotonic()
        while not self.is_over:
            self._look(job)
            if time.monotonic() - self._calm_since > _MOST_SECONDS * slowness():
                self._accuse("end", f"the round does not end: {self._describe(job)}")
                break
        self._mend(float("inf"))
        self.stage.set_weather(storm=False)
        self._part(job)

    def _is_over(self, job: int) -> bool:
        """True if the job is over, and every honest party that ends by itself has ended."""
        if self.stage.contract.job(job).status in UNDECIDED:
            return False
        return all(p.ended_well for p in self._honest() if not p.lasting)

    def _part(self, job: int) -> None:
        """Let those that follow all jobs fetch what is theirs; then stops everybody."""
        deadline = time.monotonic() + 20 * slowness()
        while time.monotonic() < deadline and self._owed():
            for party in self._honest():
                party.look()
            time.sleep(_LOOK)
        for party in self._honest():
            party.stop(None)

    def _owed(self) -> bool:
        names = [name for name in self.plan.honest if name != "referee"]
        credit = any(self.stage.contract.credit_of(self.stage.accounts[name].address) for name in names)
        held = any(game.bond_held and game.phase is Phase.OVER for game in self._games(1))
        return credit or held or any(one.status is AuditStatus.ATTESTED for one in self._audits(1).values())

    def _honest(self) -> list[Party]:
        return [p for p in self.stage.parties.values() if p.honest and p.name != "posting"]

    def _games(self, job: int) -> list[GameView]:
        return [self.stage.contract.game(number) for number in self.stage.contract.games_of(job)]

    def _audits(self, job: int) -> dict[str, AuditView]:
        """The audits with a bond of honest auditors, by name."""
        found = {str(audit.auditor): audit for audit in self.stage.contract.audits_of(job)}
        names = {f"auditor-{i}": str(self.stage.accounts[f"auditor-{i}"].address) for i in range(self.plan.auditors)}
        return {name: found[address] for name, address in names.items() if address in found}

    # Troubles.

    def _strike(self, trouble: Trouble, draw: Random) -> None:
        stage, chain = self.stage, self.stage.chain
        if trouble is Trouble.OUTAGE and self.plan.several:
            return  # with another node away there is no majority, and new bonds would rightly wait
        name, choice, size = draw.choice(self.plan.targets), draw.random() < 0.5, draw.uniform(0.5, 3.0)
        party = stage.parties.get(name + ("-twin" if choice else ""), stage.parties[name])
        self.counts[trouble.value] += 1
        self.told.append(f"{time.monotonic() - self._began:.1f} s: {trouble.value} ({party.name})")
        match trouble:
            case Trouble.KILL:
                self._kill(party, size)
            case Trouble.STOP:
                party.stop(size / 2)
            case Trouble.REORGANISATION:
                depth = min(draw.randint(1, self.plan.confirmations), chain.height - stage.deployed_at - 1)
                if depth > 0:
                    chain.reorganise(depth, put_back=choice)
            case Trouble.FEE_SPIKE:
                chain.spike(int(size * 200) * 10**9)
            case Trouble.HALT:
                chain.halt(size * 2)
            case Trouble.JUMP:
                self._jump_within_allowances(size)
            case Trouble.OUTAGE:
                weather = stage.faulty.line(party.name).weather
                stage.faulty.weather(party.name, Weather(down=True))
                self._later(size * 2, lambda: stage.faulty.weather(party.name, weather))
            case Trouble.FULL_DISK:
                party.disk.fill()
                self._later(size, party.disk.heal)
            case Trouble.READ_ONLY_DISK:
                party.disk.make_read_only()
                self._later(size, party.disk.heal)
            case Trouble.DAMAGED_BLOCK | Trouble.MISSING_BLOCK:
                self._spoil_block(size, flips=choice, removes=trouble is Trouble.MISSING_BLOCK)

    def _kill(self, party: Party, size: float) -> None:
        """Kill a party, or its other rank, or lets that one stand, for longer than rank 0 waits or not."""
        whom = self.draw.random() if party.helper is not None else 0.0
        if whom < 0.4:
            party.kill(size / 2)
        elif whom < 0.7:
            party.kill_helper()
        else:
            self._later(10 * size, party.stand())

    def _jump_within_allowances(self, size: float) -> None:
        """At most a sixth of what is left to any honest party."""
        job = self.stage.contract.job(1)
        now = self.stage.chain.now
        left = [job.commit_deadline - now] if job.status is JobStatus.OPEN else []
        left += [job.claim.challenge_deadline - now] if job.status is JobStatus.CLAIMED else []
        audits = job.audits
        windows = (
            audits.audit_deadline,
            audits.opening_deadline,
            audits.audit_opening_deadline,
            audits.appeal_deadline,
        )
        left += [deadline - now for deadline in windows if deadline > now]
        left += [d - now for game in self._games(1) for d in game.deadlines if d]
        self.stage.chain.jump(max(1, min([int(size * _LARGEST_JUMP / 3), *(one // 6 for one in left)])))

    def _spoil_block(self, seconds: float, *, flips: bool, removes: bool) -> None:
        block = self.stage.some_block(self.draw)
        if block is None:
            return
        good = self._right_bytes.setdefault(block, block.read_bytes())
        if removes:
            block.unlink()
        else:
            block.write_bytes(bytes([good[0] ^ 1]) + good[1:] if flips else good[: len(good) // 2])
        self._later(seconds, lambda: _restore(block, good))

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + seconds, what))

    def _mend(self, now: float) -> None:
        for due in [due for due in self._due if due[0] <= now]:
            self._due.remove(due)
            due[1]()

    # The chain's clock.

    def _pass_time(self, job: int, calm_since: float) -> None:
        """Move the chain's clock where nobody has anything to do but to wait."""
        try:
            posted = self.stage.contract.job(job)
            live = [(n, g) for n in self.stage.contract.games_of(job) if (g := self.stage.contract.game(n))]
        except NodeError:
            return
        calm = time.monotonic() - calm_since if calm_since else 0.0
        if posted.status is JobStatus.OPEN and self.plan.trainer is None and calm > 2 * _IDLE_SECONDS * slowness():
            self._accuse("trainer", "the trainer has not committed")
        chain, now = self.stage.chain, time.monotonic()
        if posted.status is JobStatus.SEALED and chain.now <= posted.audits.audit_deadline:
            self._claimed_at = self._claimed_at or now
            if self._have_sealed(job, calm_since):
                chain.jump(posted.audits.audit_deadline - chain.now + 1)
                self._claimed_at = 0.0
        if posted.status not in (JobStatus.CLAIMED, JobStatus.APPEALABLE):
            return
        self._claimed_at = self._claimed_at or now
        appealable = posted.status is JobStatus.APPEALABLE
        live = [(number, game) for number, game in live if game.phase is not Phase.OVER]
        silent, awaited = 0, False
        for number, game in live:
            state = (game.phase, game.search, game.levels, game.deadlines)
            if self._seen.get(number, (None, 0.0))[0] != state:
                self._seen[number] = (state, now)
            idle = now - max(self._seen[number][1], calm_since)
            running = [side for side in Side if game.deadlines[side]]
            honest = [side for side in running if self._is_honest(game, side)]
            if honest and calm_since and idle > _IDLE_SECONDS * slowness():
                self._accuse(
                    f"game {number}",
                    f"{honest[0].name} did not move in game {number} for {idle:.0f} calm seconds",
                )
            if running and not honest and idle > _SILENT_SECONDS * slowness():
                silent = max(silent, max(game.deadlines))
            # A trainer that loses on purpose has to lose to somebody: if both clocks run out, there is no appeal.
            loses_to_nobody = self.plan.appeals and not appealable and Side.CHALLENGER in running
            awaited |= bool(honest) or loses_to_nobody
        if silent and not awaited and (appealable or not self.plan.appeals or self._have_judged(job, calm_since)):
            # Never while anybody honest has to move in another game, or a trainer that loses on purpose is attested to.
            chain.jump(silent - chain.now + 1)
        if appealable:
            if not live and chain.now <= posted.audits.appeal_deadline and self._have_appealed(job, calm_since):
                chain.jump(posted.audits.appeal_deadline - chain.now + 1)
            return
        if live and chain.now <= posted.audits.audit_opening_deadline and self._have_judged(job, calm_since):
            chain.jump(posted.audits.audit_opening_deadline - chain.now + 1)
        if not live and chain.now <= posted.claim.challenge_deadline and self._have_judged(job, calm_since):
            chain.jump(posted.claim.challenge_deadline - chain.now + 1)

    def _have_sealed(self, job: int, calm_since: float) -> bool:
        """True if every honest auditor has sealed its root; what they need is time in calm weather. A place taken with
        an empty seal has to be filled first, and again where a reorganisation has dropped that."""
        filled = {name for name, audit in self._audits(job).items() if self._is_filled(name, audit.seal, job)}
        missing = {f"auditor-{i}" for i in range(self.plan.auditors)} - filled
        if not missing or not calm_since:
            return not missing
        # Longer than for a move: a whole run is repeated first, on processors that others use too.
        if time.monotonic() - max(calm_since, self._claimed_at) < 5 * _IDLE_SECONDS * slowness():
            return False
        self._accuse("seals", f"{min(missing)} has not sealed an audit")
        return True

    def _is_filled(self, auditor: str, seal: bytes, job: int) -> bool:
        """Whether a seal is that of a root which an auditor, or its twin, keeps on its disk."""
        contract, address = self.stage.contract, self.stage.accounts[auditor].address
        for name in {auditor, f"{auditor}-twin"} & set(self.stage.parties):
            for path in self.stage.parties[name].disk.directory.rglob("sealed-audit.json"):
                kept = json.loads(path.read_text())
                root, salt = (bytes.fromhex(kept[field]) for field in ("checkpoint_root", "salt"))
                about = contract.node.chain_id, contract.address, job, address
                if audit_seal(*about, checkpoint_root=root, salt=salt) == seal:
                    return True
        return False

    def _have_appealed(self, job: int, calm_since: float) -> bool:
        """True if every honest auditor whose bond the verdict would take has appealed."""
        self._appealable_at = self._appealable_at or time.monotonic()
        attested = {name: one for name, one in self._audits(job).items() if one.status is AuditStatus.ATTESTED}
        missing = sorted(name for name, one in attested.items() if not one.appeal)
        if not missing or not calm_since:
            return not missing and calm_since > 0
        if time.monotonic() - max(calm_since, self._appealable_at) < 2 * _IDLE_SECONDS * slowness():
            return False
        self._accuse("appeals", f"{missing[0]} has not appealed against a verdict that takes its bond")
        return True

    def _have_judged(self, job: int, calm_since: float) -> bool:
        """True if every honest auditor has attested or challenged; what they need is time in calm weather."""
        contract = self.stage.contract
        challengers = {game.challenger for game in self._games(job)}
        for i in range(self.plan.auditors):
            address = self.stage.accounts[f"auditor-{i}"].address
            if contract.has_attested(job, address) or address in challengers:
                continue
            if not calm_since or time.monotonic() - max(calm_since, self._claimed_at) < 2 * _IDLE_SECONDS * slowness():
                return False
            self._accuse(f"auditor-{i}", f"auditor-{i} has neither attested nor challenged")
        # Dishonest challengers would come late, or not at all.
        return calm_since > 0 and time.monotonic() - max(calm_since, self._claimed_at) > 3 * slowness()

    def _is_honest(self, game: GameView, side: Side) -> bool:
        address = game.party(side)
        names = {str(self.stage.accounts[name].address) for name in self.plan.honest}
        return str(address) in names

    def _accuse(self, about: str, text: str) -> None:
        if about not in self._accused:
            self._accused.add(about)
            self.violations.append(text)

    def games_and_audits(self, job: int) -> list[str]:
        """What the chain shows of games and audits, with the names of their parties."""
        names = {str(account.address): name for name, account in self.stage.accounts.items()}
        lines = [
            f"game {number}: {names.get(str(game.challenger))} against {names.get(str(game.trainer))}"
            f"{' (appeal)' if game.is_appeal else ''}, {game.phase.name}, {game.outcome.name}, {game.reason.name}"
            for number in self.stage.contract.games_of(job)
            for game in [self.stage.contract.game(number)]
        ]
        audits = self.stage.contract.audits_of(job)
        return lines + [
            f"audit by {names.get(str(one.auditor))}: {one.status.name}, appeal {one.appeal}" for one in audits
        ]

    def _describe(self, job: int) -> str:
        posted = self.stage.contract.job(job)
        games = [f"{g.phase.name} {g.outcome.name}" for g in self._games(job)]
        waiting = [f"{p.name}: {p.last_words()[:200]}" for p in self._honest() if not p.lasting and not p.ended_well]
        return f"job {posted.status.name}, games {games}, still running {waiting}"


def _restore(block: Path, good: bytes) -> None:
    block.parent.mkdir(parents=True, exist_ok=True)
    block.write_bytes(good)


class ChaosWithAppeals(Chaos):
    """A round in which a right claim is lost on purpose, and appeals save the bonds of those who attested."""

    APPEALS = True
