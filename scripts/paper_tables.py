"""The tables of OVT (Srivastava, Arora, Boneh 2024), measured on this machine, beside `certified`.

    .venv/bin/python scripts/paper_tables.py [--size small|brief|paper] [--out docs] [--parts resnet,gpt2,proofs]

Hardware profiles are fresh processes under other instruction sets and thread counts. Writes RESULT and OUT/papers.md;
what is not measured again stays as it is in RESULT. `small` takes minutes on two cores and a gigabyte of disk; `paper`
trains the real models, `brief` for a step or two only, GPT-2 in sixteen gigabytes of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from papers import report
from papers.tasks import PROFILES, SIZES, WARM_UP, Size, make
from roundlog.capture import Task
from roundlog.number_format import FLOAT32
from roundlog.rounding.ovt import Divergence
from roundlog.spec import POLICY_CERTIFIED, POLICY_THRESHOLD
from roundlog.training.job import Job
from safetensors.torch import load_file

POLICIES = {"certified": POLICY_CERTIFIED, "threshold": POLICY_THRESHOLD}


Ask = dict[str, Any]


def measured(profile: str, asks: list[Ask]) -> list[dict[str, Any]]:
    """Measurements, one after the other, in one fresh process under a hardware profile."""
    paths = [str(Path(__file__).parent), *sys.path]
    environment = {**os.environ, **PROFILES[profile], "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    print(f"{len(asks)} measurements on profile {profile}", file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "papers.worker"],
        input=json.dumps(asks, default=str),
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def captured(model: str, arguments: dict[str, Any], steps: int, room: Path) -> dict[str, Any]:
    """A task that is captured here once, as every worker gets it."""
    path = room / f"job of {steps} steps"
    Job.from_task(lambda: make(model, arguments, steps)).write(path)
    return {"model": model, "arguments": arguments, "steps": steps, "job": path}


def folder(room: Path, name: str) -> Path:
    path = room / name
    path.mkdir()
    return path


def thresholds(model: str, arguments: dict[str, Any], room: Path) -> dict[str, Any]:
    """Table 4: Algorithm 3 between A and B, by kind of operator, at 32 bits."""
    places = {profile: folder(room, f"observed {profile}") for profile in ("A", "B")}
    task = captured(model, arguments, 2, room)
    for profile, out in places.items():
        (seen,) = measured(profile, [{"what": "observe", **task, "out": out}])
    found: dict[str, Divergence] = {}
    for path in sorted(places["A"].iterdir()):
        with np.load(path) as a, np.load(places["B"] / path.name) as b:
            for index in a.files:
                kind = seen["operators"][int(index)]
                pair = Divergence.between(torch.from_numpy(a[index]), torch.from_numpy(b[index]), FLOAT32)
                found[kind] = found.get(kind, Divergence()) + pair
    return {
        kind: {
            "elements": d.elements,
            "differing": d.differing,
            "beyond": d.beyond,
            "search": d.search(),
            "threshold": d.threshold(),
            "widest": d.widest,
            "safe": d.safe,
        }
        for kind, d in sorted(found.items())
    }


def correction_asks(task: Ask, bits: tuple[int, ...], tau: dict[str, Any], room: Path) -> list[Ask]:
    """Tables 2 and 3: every b_r under both policies, `threshold` also with Algorithm 3's thresholds."""
    by_operator = {"default": 0.25, "operators": {kind: row["threshold"] for kind, row in tau.items()}}
    asks = []
    for width in bits:
        for name, chosen in (("certified", None), ("threshold", {}), ("threshold", by_operator)):
            log = room / f"{len(asks)}.rlog"
            asks.append({**task, "policy": POLICIES[name], "bits": width, "log": log, "thresholds": chosen or {}})
    return asks


def correction_rows(asks: list[Ask], trained: list[Ask], audited: list[Ask]) -> list[dict[str, Any]]:
    return [
        {
            "policy": next(name for name, number in POLICIES.items() if number == ask["policy"]),
            "bits": ask["bits"],
            "adaptive": bool(ask["thresholds"]),
            "same": mine["roots"] == theirs["roots"],
            "train": mine,
            "corrections": theirs["corrections"],
            "findings": theirs["findings"],
        }
        for ask, mine, theirs in zip(asks, trained, audited, strict=True)
    ]


def distance(a: Path, b: Path) -> float:
    """L2 distance of the parameters of two snapshots, in FP64."""
    one, other = load_file(a), load_file(b)
    names = [name for name in one if name.startswith("parameter/")]
    return float(sum((one[name].double() - other[name].double()).square().sum() for name in names).sqrt())


def outputs(task: Task, snapshot: Path) -> torch.Tensor:
    """The model's outputs on the first rows of its data, in FP64 and evaluation mode."""
    state = {name.partition("/")[2]: tensor for name, tensor in load_file(snapshot).items()}
    task.model.load_state_dict(state, strict=False)
    model = task.model.double().eval()
    first = next(iter(task.dataset.values()))[: task.batch_size]
    if not first.is_floating_point():
        first = first[:, :-1]  # a row of tokens ends with the target of its last position
    with torch.no_grad():
        found: torch.Tensor = model(first.double() if first.is_floating_point() else first).flatten()
    return found


DIVERGENCE = {
    "plain A": ("A", {"what": "plain"}),
    "plain order": ("A", {"what": "plain", "order": 8}),
    "certified A": ("A", {"what": "train", "policy": POLICY_CERTIFIED}),
    "threshold A": ("A", {"what": "train", "policy": POLICY_THRESHOLD}),
    "plain B": ("B", {"what": "plain"}),
    "certified B": ("B", {"what": "audit", "policy": POLICY_CERTIFIED}),
    "threshold B": ("B", {"what": "audit", "policy": POLICY_THRESHOLD}),
    "rounded B": ("B", {"what": "audit", "policy": POLICY_THRESHOLD, "without_log": True}),
    "plain C": ("C", {"what": "plain"}),
}
"""Name of a run -> its profile and what it is: for Table 6."""


def divergence_asks(task: Ask, profile: str, room: Path) -> list[Ask]:
    logs = {0: room / "certified.rlog", 1: room / "threshold.rlog"}
    return [
        {**task, **ask, "log": logs[ask.get("policy", 0)], "snapshots": folder(room, name)}
        for name, (where, ask) in DIVERGENCE.items()
        if where == profile
    ]


def divergence(task: Ask, losses: list[float], room: Path) -> dict[str, Any]:
    """Table 6, from the runs' snapshots. losses: those of the run "plain A"."""
    steps = task["steps"]

    def apart(a: str, b: str) -> dict[str, float]:
        last = f"{steps - 1}.safetensors"
        example = make(task["model"], task["arguments"], steps)
        pair = [outputs(example, room / name / last) for name in (a, b)]
        return {"weights": distance(room / a / last, room / b / last), "outputs": float((pair[0] - pair[1]).norm())}

    return {
        "steps": steps,
        "losses": losses,
        "first": distance(room / "plain A" / "0.safetensors", room / "plain B" / "0.safetensors"),
        "apart": {
            "order of the data, plain FP32": apart("plain A", "plain order"),
            "hardware A and B, plain FP32": apart("plain A", "plain B"),
            "hardware A and C, plain FP32": apart("plain A", "plain C"),
            "hardware A and B, rounded without a log": apart("threshold A", "rounded B"),
            "hardware A and B, threshold": apart("threshold A", "threshold B"),
            "hardware A and B, certified": apart("certified A", "certified B"),
        },
    }


def times(model: str, arguments: dict[str, Any], rounds: int, policy: str) -> dict[str, Any]:
    """Table 5 for one policy, in a process of its own: all that it needs of a large model is much memory."""
    ask = {"model": model, "arguments": arguments, "steps": WARM_UP + rounds, "policy": POLICIES[policy]}
    return measured("A", [{"what": "timing", **ask}])[0]


def of_model(model: str, size: Size, room: Path) -> dict[str, Any]:
    """All measurements of one model."""
    arguments = size.models[model]
    tau = thresholds(model, arguments, room)
    asks = correction_asks(captured(model, arguments, size.correction_steps, room), size.bits, tau, room)
    quiet = arguments | ({"dropout": 0.0} if model == "gpt2" else {})
    drift, place = captured(model, quiet, size.divergence_steps, room), folder(room, "divergence")
    drifting = {profile: divergence_asks(drift, profile, place) for profile in PROFILES}
    trained = measured("A", [*({"what": "train", **ask} for ask in asks), *drifting["A"]])
    audited = measured("B", [*({"what": "audit", **ask} for ask in asks), *drifting["B"]])
    measured("C", drifting["C"])
    return {
        "arguments": arguments,
        "thresholds": tau,
        "corrections": correction_rows(asks, trained[: len(asks)], audited[: len(asks)]),
        "times": {policy: times(model, arguments, size.timed_rounds, policy) for policy in POLICIES},
        "divergence": divergence(drift, trained[len(asks)]["losses"], place),
    }


def proof_tasks(size: Size, room: Path) -> dict[str, Any]:
    """Section 6.2: a step of logistic regression and of VGG-11, at the sizes of the proof systems."""
    found = {}
    for model in PROOFS:
        arguments = size.models[model]
        task = captured(model, arguments, 3, folder(room, model))
        ask = {"what": "train", **task, "policy": POLICY_CERTIFIED, "log": room / f"{model}.rlog"}
        found[model] = {"train": measured("A", [ask])[0], "times": times(model, arguments, 3, "certified")}
    return found


PROOFS = ("logistic", "vgg11")


def measure(size: Size, part: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        room = folder(Path(directory), part)
        return proof_tasks(size, room) if part == "proofs" else of_model(part, size, room)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=sorted(SIZES), default="small")
    parser.add_argument("--parts", default="resnet,gpt2,proofs", help="what to measure; empty: only report again")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--result", type=Path, default=Path(report.__file__).with_name("result.json"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    record = arguments.result
    result = json.loads(record.read_text()) if record.exists() else {}
    for part in filter(None, arguments.parts.split(",")):
        found = measure(SIZES[arguments.size], part)
        result["machine"] = f"{os.cpu_count()} cores of {platform.machine()}, PyTorch {torch.__version__}"
        result.setdefault("parts", {}).setdefault(part, {})[arguments.size] = found
        record.write_text(json.dumps(result, indent=1) + "\n")
    (arguments.out / "papers.md").write_text(report.markdown(result))


if __name__ == "__main__":
    main()
