"""Models of real sizes, from the script to a job, steps, an audit and a receipt: processor time, memory, disk.

    .venv/bin/python scripts/bench_sizes.py [--small] [--only WORD] [--steps 4] [--interval N] [--micro-batches N]
        [--directory FOLDER]

Models are made by their shapes, with random weights, and trained on random tokens: LoRA adapters (r = 8, on queries
and values, FP32) on weights in BF16 under an autocast, all weights in FP32 under an autocast, or all of a model in
FP32. Each part is a process of its own with one thread, and plain PyTorch takes the same steps in one. Printed are a
part's processor seconds and largest memory; below, a step in plain PyTorch's, bytes of log and checkpoints, the plan, a
stranger's bytes, the lie's place.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from bench_data import serving
from roundlog import Task
from roundlog.kernels.scratch import give_back
from roundlog.training import Job
from tiebreak.contract.enums import JobStatus, Level
from tiebreak.contract.events import ElementProven
from tiebreak.roles.customer_role import post_job
from tiebreak_demo.adversary.parties import read_slot
from tiebreak_demo.processes import A
from tiebreak_demo.scene import TIEBREAK, Scene
from tiebreak_demo.stories import MISBEHAVE, TERMS
from torch import nn

_TIEBREAK = ("-P", "-m", "tiebreak")


@dataclass(frozen=True, slots=True)
class Size:
    """A model's shape, and the rows of a step."""

    layers: int
    heads: int
    inner: int
    vocabulary: int
    rows: int
    tokens: int
    keys: int = 0
    """Heads of keys and values; 0: as many as of queries."""
    is_gpt2: bool = False
    """A GPT-2 in FP32; others are Llamas under an autocast to BF16."""
    is_lora: bool = True

    def small(self) -> Size:
        """About a tenth of it."""
        fewer = {"layers": max(2, self.layers // 6), "heads": max(2, self.heads // 4), "tokens": self.tokens // 4}
        return replace(self, **fewer, keys=0, inner=self.inner // 4, vocabulary=self.vocabulary // 8)


SIZES = {
    "135M, LoRA, 2 x 64": Size(30, 9, 1536, 49152, 2, 64, keys=3),
    "135M, LoRA, 8 x 512": Size(30, 9, 1536, 49152, 8, 512, keys=3),
    "GPT-2 124M, FP32, 2 x 64": Size(12, 12, 3072, 50257, 2, 64, is_gpt2=True, is_lora=False),
    "360M, LoRA, 2 x 1024": Size(32, 15, 2560, 49152, 2, 1024, keys=5),
    "0.5 billion, all weights, 1 x 512": Size(24, 14, 4864, 151936, 1, 512, keys=2, is_lora=False),
    "1.2 billion, LoRA, 1 x 1024": Size(16, 32, 8192, 128256, 1, 1024, keys=8),
}


def shape_of(size: str, small: bool) -> Size:
    """The shape of a size, by its name, or about a tenth of it."""
    return SIZES[size].small() if small else SIZES[size]


class Adapter(nn.Module):
    """A linear layer that is left as it is, and a product of two small ones beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.down = base, nn.Linear(base.in_features, 8, bias=False)
        self.up = nn.Linear(8, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        adapted: torch.Tensor = self.base(x) + 2.0 * self.up(self.down(x.float()))
        return adapted


def write_weights(size: Size, folder: Path) -> None:
    """Write a model of a shape, with random weights, as its users have it."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    width = 64 * size.heads
    if size.is_gpt2:
        gpt2 = GPT2Config(
            n_layer=size.layers, n_head=size.heads, n_embd=width, n_inner=size.inner, vocab_size=size.vocabulary
        )
        GPT2LMHeadModel(gpt2).save_pretrained(folder)
        return
    llama = LlamaConfig(
        hidden_size=width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.keys or size.heads,
        intermediate_size=size.inner,
        vocab_size=size.vocabulary,
        tie_word_embeddings=True,
    )
    dtype = torch.bfloat16 if size.is_lora else torch.float32
    LlamaForCausalLM._from_config(llama, dtype=dtype).save_pretrained(folder)


def model_of(size: Size, weights: Path) -> nn.Module:
    """A model with the weights of a folder, and adapters if it has any."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model: nn.Module = AutoModelForCausalLM.from_pretrained(weights, dtype="auto")
    if size.is_lora:
        model.requires_grad_(False)
        for module in list(model.modules()):
            for name in ("q_proj", "v_proj"):
                if isinstance(linear := getattr(module, name, None), nn.Linear):
                    setattr(module, name, Adapter(linear))
    return model


def task(size: str, steps: int, weights: Path, small: bool = False, interval: int = 0) -> Task:
    """The task of a size, by its name, with the weights of a folder. interval: 0 for half of the steps."""
    shape = shape_of(size, small)
    model = model_of(shape, weights)
    draws = torch.Generator().manual_seed(1)

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=not shape.is_gpt2):
            found: torch.Tensor = model(input_ids=batch["tokens"], labels=batch["tokens"]).loss
        return found

    return Task(
        model=model,
        loss=loss,
        optimizer=torch.optim.AdamW([x for x in model.parameters() if x.requires_grad], lr=1e-3),
        dataset={"tokens": torch.randint(shape.vocabulary, (4 * shape.rows, shape.tokens), generator=draws)},
        batch_size=shape.rows,
        steps=steps,
        interval=interval or max(1, steps // 2),
        seed=1,
    )


def plain_seconds(given: Task) -> float:
    """Seconds of the fastest step of plain PyTorch's."""
    taken = []
    for step in range(given.steps):
        started = time.perf_counter()
        rows = torch.arange(given.batch_size) + step * given.batch_size
        given.optimizer.zero_grad()
        given.loss(given.model, given.batch(rows % given.rows)).backward()
        given.optimizer.step()
        taken.append(time.perf_counter() - started)
    return min(taken)


def run_together(parts: Mapping[str, tuple[Sequence[str], Mapping[str, str]]]) -> list[str]:
    """Run Python in processes side by side, each with words and an environment, print their costs, and give what they
    print. Raises SystemExit if one fails."""
    said = []
    with ExitStack() as stack:
        begun = []
        for what, (words, environment) in parts.items():
            out, err = (stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2))
            place = {**environment, "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen([sys.executable, *words], stdout=out, stderr=err, env=place)
            begun.append((what, process, out, err))
        for what, process, out, err in begun:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            said.append(out.read())
            if process.returncode:
                err.seek(0)
                raise SystemExit(f"{what} failed:\n{said[-1][-1000:]}\n{err.read()[-2000:]}")
            print(f"| {what} | {used.ru_utime + used.ru_stime:,.0f} s | {used.ru_maxrss / 1e6:.1f} GB |", flush=True)
    return said


def run(what: str, words: Sequence[str]) -> str:
    """Run Python in a process, print its cost, and give what it prints. Raises SystemExit if it fails."""
    return run_together({what: (words, os.environ)})[0]


def dispute(job: Path, room: Path, cut: Sequence[str]) -> str:
    """Have a trainer whose model has one weight an ulp off and an auditor play their game on a chain of its own, and
    give its end in words. Raises SystemExit unless the claim is rejected."""
    room.mkdir(parents=True)
    with Scene(room) as scene:
        terms = replace(TERMS, clock_allowance=12 * 3600, referee_allowance=12 * 3600)
        number = post_job(scene.context(scene.customer, lambda notice: None), job, terms, scene.referee.address)
        give_back()  # a step of it, by which clocks were tried
        trainer, auditor = (replace(party, machine=A) for party in (scene.trainer, scene.auditor))
        manner = ("--poll", "1s", "--json", "--dir")
        run_together(
            {
                "the liar: steps, moves": (
                    [*MISBEHAVE[1:], "weight", str(number), "0", *manner, str(scene.room(trainer))],
                    scene.environment(trainer),
                ),
                "the auditor: steps, moves": (
                    [*TIEBREAK[1:], "auditor", "run", "--job", str(number), *cut, *manner, str(scene.room(auditor))],
                    scene.environment(auditor),
                ),
            }
        )
        if scene.contract.job(number).status is not JobStatus.REJECTED:
            raise SystemExit("the lie was not found")
        (game,) = scene.contract.games_of(number)
        (proof,) = [one for one in scene.contract.events(game=game) if isinstance(one, ElementProven)]
        operator = scene.contract.game(game).levels[Level.OPERATOR].index
        return f"The lie was found at element {proof.element:,} of {read_slot(Job.read(job).program, operator)}."


def measure(size: str, steps: int, small: bool, room: Path, cut: Sequence[str] = (), interval: int = 0) -> None:
    """Print the lines of a size. cut: options of training and audits. interval: as `task` has it."""
    print(
        f"\n{size}{', a tenth of it' if small else ''}, {steps} steps\n\n| part | processor | memory |\n|---|---|---|"
    )
    weights, smaller = str(room / "weights"), ["--small"] * small
    run("writing the weights", [__file__, "--write", size, weights, *smaller])
    taken = run("plain PyTorch", [__file__, "--plain", size, weights, "--steps", str(steps), *smaller])
    plain = float(taken.splitlines()[-1])
    job, trained, log = (str(room / name) for name in ("job", "run", "run/log"))
    settings = {"size": size, "steps": steps, "weights": weights, "small": "true" if small else "false"}
    settings["interval"] = interval
    given = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    run("making the job", [*_TIEBREAK, "job", "create", f"{__file__}:task", *given, "--out", job])
    planned = json.loads(run("looking at the job", [*_TIEBREAK, "job", "show", job, "--json"]))["run_memory_bytes"]
    run("the steps", [*_TIEBREAK, "train", job, "--run", trained, *cut])
    run(
        "an audit, by the log",
        [*_TIEBREAK, "audit", job, "--run", str(room / "audit"), "--claim", trained, "--log", log, *cut],
    )
    run("a receipt", [*_TIEBREAK, "receipt", trained, "--job", job, "--out", str(room / "receipt.json")])
    run("export", [*_TIEBREAK, "export", trained, "--to", str(room / "model.safetensors")])
    store, far = ("--store", str(room / "store")), str(room / "far")
    every = ("--publish-every", "1", *store, "--json")
    published = run("publishing the run", [*_TIEBREAK, "train", job, "--run", trained, *every])
    cid = json.loads(run("publishing the job", [*_TIEBREAK, "job", "publish", job, *store, "--json"]))["cid"]
    with serving(room / "store") as (gateway, sent):
        places = ("--store", gateway)
        run("a stranger: the job over HTTP", [*_TIEBREAK, "job", "fetch", cid, "--out", far, *places])
        fetched = sent.total()
        address = json.loads(published)["published_log"]
        words = ("audit", address, "--run", str(room / "share"), "--share", "0.5", *places)
        run("a stranger: one share", [*_TIEBREAK, *words])
    told = dispute(Path(job), room / "chain", cut)
    lines: list[dict[str, Any]] = [json.loads(x) for x in (room / "run" / "history.jsonl").read_text().splitlines()]
    ours = min(line["seconds"] for line in lines)
    whole = sent.total() - fetched
    logged = sum(path.stat().st_size for path in Path(log).iterdir())
    first, *_, last = sorted((room / "run" / "checkpoints").iterdir())
    disk = sum(path.stat().st_size for path in (room / "run").rglob("*") if path.is_file())
    print(
        f"\nA step is {ours / plain:.2f} of plain PyTorch's ({plain:.2f} s), its log has {logged / steps:,.0f} bytes, "
        f"a checkpoint {first.stat().st_size / 1e6:,.1f} MB, and the last one {last.stat().st_size / 1e6:,.1f} MB; "
        f"the run takes {disk / 1e6:,.1f} MB of disk. "
        f"The plan of a run is {planned / 1e9:.1f} GB beside what the process has for looking at the job. A stranger "
        f"fetches {fetched / 1e6:,.1f} MB for the job, and {whole / 1e6:,.1f} MB for the job and a share. {told}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a tenth of each size")
    parser.add_argument("--only", default="", metavar="WORD", help="sizes with this in their names")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--interval", type=int, default=0, help="steps from checkpoint to checkpoint; 0: half of all")
    parser.add_argument("--directory", type=Path, metavar="FOLDER", help="empty, for jobs and runs; kept")
    parser.add_argument("--micro-batches", default="1", metavar="N", help="of training, audit and auditor")
    for part in ("--plain", "--write"):
        parser.add_argument(part, nargs=2, metavar=("SIZE", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write is not None:
        write_weights(shape_of(options.write[0], options.small), Path(options.write[1]))
        return
    if options.plain is not None:
        print(plain_seconds(task(options.plain[0], options.steps, Path(options.plain[1]), options.small)))
        return
    chosen = [name for name in SIZES if options.only in name]
    if not chosen or options.steps < 2:
        parser.error("choose a size that is there (--only), and 2 steps or more")
    with tempfile.TemporaryDirectory(prefix="sizes-") as temporary:
        for name in chosen:
            place = (options.directory or Path(temporary)) / re.sub(r"\W+", "-", name)
            measure(
                name, options.steps, options.small, place, ("--micro-batches", options.micro_batches), options.interval
            )


if __name__ == "__main__":
    main()
