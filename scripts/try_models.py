"""Language models of `transformers`, and those that read images, as tasks: whether each kind is captured, and trains to
one root on two machines.

    .venv/bin/python scripts/try_models.py [--only NAME] [--again OUTCOME] [--jobs N] [--write docs/models.md]

Models are built from small configurations; nothing is downloaded. Every kind is tried in processes of its own, so that
one that crashes or hangs is a row of the table and no more. Rows are kept in scripts/models/rows.jsonl (`--rows`) as
they come: an interrupted run carries on after them. `--again refused` tries those again whose outcome was that;
`--only` always does.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import inspect
import json
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from machines.profiles import MACHINES
from roundlog.capture import CaptureError, Task
from roundlog.examples.baseline import PlainTraining
from roundlog.randomness import batch_rows
from roundlog.training.job import Job
from roundlog.training.trainer import Trainer
from torch import nn
from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

_ROWS = Path(__file__).resolve().parent / "models" / "rows.jsonl"

FIRST, SECOND = "native, one thread", "compatible"
"""The profiles on which every job is executed."""

HEADS = {"IMAGE_TEXT_TO_TEXT": "multimodal", "CAUSAL_LM": "text", "MASKED_LM": "text"}
"""Tables of `transformers`, in the order in which a kind is looked up -> what the page calls the family."""

WORDS = 32
"""Size of every vocabulary."""
ROWS, BATCH, TOKENS, STEPS = 4, 2, 8, 2
MOST_PARAMETERS = 3_000_000

Row = Mapping[str, Any]
Fields = dict[str, torch.Tensor]


class NotTried(Exception):
    """A kind that cannot be tried here: the message says why."""


@dataclass(frozen=True, slots=True)
class Kind:
    """An architecture with a head. name: the model type of its config; head: a key of HEADS; cls: the model's class."""

    name: str
    head: str
    cls: str

    @property
    def model(self) -> Any:
        return getattr(transformers, self.cls)


def discover() -> dict[str, Kind]:
    """Name -> kind, in the order of `HEADS`."""
    found: dict[str, Kind] = {}
    for head in HEADS:
        for name, cls in getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES").items():
            found.setdefault(name, Kind(name, head, cls if isinstance(cls, str) else cls[0]))
    return found


# Small configurations: the defaults of a config class, with sizes replaced by name.


@dataclass(frozen=True, slots=True)
class Scale:
    """A set of sizes. A kind gets the first with which it can be built and run."""

    width: int
    heads: int
    layers: int
    image: int = 32
    patch: int = 8


SCALES = (
    Scale(16, 2, 2),
    Scale(32, 4, 2),
    Scale(32, 2, 4),
    Scale(64, 4, 4),
    Scale(64, 8, 2, 64, 16),
    Scale(128, 4, 4, 64, 16),
)

_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_expand": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 32},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "granitemoehybrid": {**_MAMBA, "layer_types": ["mamba", "attention"], "num_hidden_layers": 2},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "longcat_flash": {"qk_head_dim": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "head_dim": 8},
    "mamba2": {"num_heads": 4, "head_dim": 8, "n_groups": 1, "expand": 2, "chunk_size": 4},
    "ministral": {"head_dim": 8},
}
"""Settings that a kind needs beside the small sizes, or instead of them."""


def _size(name: str, scale: Scale) -> int | None:
    """The small value of a setting, by its whole name: the first pattern that fits counts."""
    of_a_head = scale.width // scale.heads
    rules = (
        (r"(.*_)?vocab_size(_.*)?", WORDS),
        (r"codebook_size|num_embeddings", 64),
        (r"max_(source|target)_positions|(.*_)?max_(2d_)?position_embeddings|n_positions|n_ctx|max_seq_len", 64),
        (r"(.*_)?(layers|n_layer|depth|num_blocks)", scale.layers),
        (r"(.*_)?num_(key_value|kv)_heads", 1),
        (r"(.*_)?(heads|n_head)", scale.heads),
        (r"(.*_)?(head_dim|d_kv|head_size|d_head)", of_a_head),
        (r"(.*_)?(rank|state_size|d_state)", 8),
        (r"rotary_dim", of_a_head // 2),
        (r"(.*_)?(intermediate_size|ffn_dim|d_ff|ffn_hidden_size|mlp_dim|feed_forward_size|dff)", 2 * scale.width),
        (r"(.*_)?(hidden_size(_.*)?|d_model|n_embd|dim|embedding_size|width|channels|d_inner)", scale.width),
        (r"(.*_)?(image_size|img_size|crop_size)|input_size", scale.image),
        (r"(.*_)?patch_size", scale.patch),
        (r"(.*_)?num_(.*_)?experts|n_routed_experts|n_group|topk_group", 4),
        (r"num_experts_per_tok|moe_topk|moe_k", 2),
        (r"num_query_tokens|resampler_n_latents", 8),
        (r"num_mel_bins", 16),
        (r"window_size|sliding_window|local_attention|chunk_size|block_size", 4),
    )
    return next((small for pattern, small in rules if re.fullmatch(pattern, name)), None)


def _sizes(name: str, value: list[int], scale: Scale) -> list[int] | None:
    """Likewise of a list of sizes, one a stage."""
    if re.fullmatch(r"(.*_)?(depths|layers)", name):
        return [1] * len(value)
    if re.fullmatch(r"(.*_)?heads", name):
        return [scale.heads] * len(value)
    if re.fullmatch(r"(.*_)?(hidden_sizes|embed_dim|channels)", name):
        if len(set(value)) == 1:
            return [scale.width] * len(value)
        return [scale.width * (1 + (v > value[0])) for v in value]
    return [scale.image] * len(value) if name == "image_size" else None


def _settings(cls: type[PreTrainedConfig]) -> dict[str, Any]:
    """The default arguments of a config class: its own defaults, without those of every config."""
    common, made = set(inspect.signature(PreTrainedConfig).parameters), cls()
    names = [*getattr(cls, "__annotations__", {}), *inspect.signature(cls.__init__).parameters]
    for base in cls.__mro__[: cls.__mro__.index(PreTrainedConfig)]:
        names += getattr(base, "__annotations__", {})
    # Some settings differ from layer to layer, and have no one value to be asked for.
    kept = (name for name in dict.fromkeys(names) if name not in common and name in made.__dict__)
    return {name: made.__dict__[name] for name in kept if not name.startswith("_")}


def shrunken(cls: type[PreTrainedConfig], scale: Scale, given: Mapping[str, Any]) -> PreTrainedConfig:
    """A small config of a class. given: settings that are taken as they are."""
    changes: dict[str, Any] = {}
    defaults = _settings(cls)
    for name, value in defaults.items():
        if isinstance(value, PreTrainedConfig):
            changes[name] = shrunken(type(value), scale, {})
        elif type(value) is int and (small := _size(name, scale)) is not None and name not in given:
            changes[name] = min(small, value) if value > 0 else value
        elif isinstance(value, (list, tuple)) and value and all(type(item) is int for item in value):
            if (smaller := _sizes(name, list(value), scale)) is not None:
                changes[name] = type(value)(smaller)
        elif name == "layer_types" and isinstance(value, list):
            kinds = list(dict.fromkeys(value))
            changes[name] = [kinds[number % len(kinds)] for number in range(scale.layers)]
        elif isinstance(value, float) and "layerdrop" in name.replace("_", ""):
            changes[name] = 0.0
    # As many heads of keys as of queries where the default has that.
    for name in ("num_key_value_heads", "num_kv_heads", "n_kv_heads"):
        for whole in ("num_attention_heads", "n_head", "n_heads", "num_heads"):
            if name in changes and isinstance(changes.get(whole), int):
                changes[name] = changes[whole] if defaults[name] == defaults[whole] else 1
    # Special tokens are the last words of the vocabulary.
    special = (name for name, value in sorted(defaults.items()) if type(value) is int and value >= 8)
    tokens = (name for name in special if re.search(r"token_(id|index)$|_token$", name))
    changes |= {name: WORDS - 1 - number for number, name in enumerate(tokens)}
    changes |= _rotations(cls, defaults, {**changes, **given}, scale)
    if "use_cache" in defaults:
        changes["use_cache"] = False
    return cls(**{**changes, **given})


def _rotations(
    cls: type[PreTrainedConfig], defaults: Mapping[str, Any], changes: Mapping[str, Any], scale: Scale
) -> dict[str, Any]:
    """Rotary embeddings of time, height and width: the three share out half of a head."""
    found = {}
    has_three = "mrope_section" in (getattr(cls, "ignore_keys_at_rope_validation", None) or ())
    for name in ("rope_parameters", "rope_scaling"):
        value = defaults.get(name)
        if isinstance(value, Mapping) and (has_three or "mrope_section" in value):
            size = changes.get("head_dim") or scale.width // scale.heads
            half = int(size * value.get("partial_rotary_factor", 1)) // 2
            found[name] = {**value, "mrope_section": [half - 2 * (half // 3), half // 3, half // 3]}
    return found


# Inputs: fields by the names of the model's arguments, and a loss.


@dataclass(frozen=True, slots=True)
class Inputs:
    """A dataset, and what is passed beside it.

    fixed: arguments that are the same for every batch; lists become tensors. has_loss: whether the model gives a loss;
    else it is the mean of squares of its first output. joined: fields that the model wants without the axis of the
    batch: the samples, one after another."""

    fields: Fields
    fixed: dict[str, Any] = field(default_factory=dict)
    has_loss: bool = True
    joined: tuple[str, ...] = ()


def loss_of(inputs: Inputs) -> Callable[[nn.Module, Mapping[str, torch.Tensor]], torch.Tensor]:
    """The loss of a task."""

    def loss(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        given = {name: x.flatten(0, 1) if name in inputs.joined else x for name, x in batch.items()}
        # Python may ask a tensor for its values if it was made inside of the step, from numbers.
        fixed = {
            name: torch.tensor(value) if isinstance(value, list) else value for name, value in inputs.fixed.items()
        }
        outputs = model(**given, **fixed)
        found: torch.Tensor = outputs.loss.mean() if inputs.has_loss else outputs[0].float().square().mean()
        return found

    return loss


def find(config: PreTrainedConfig, *names: str) -> Any:
    """The first setting of one of these names, in the config or in one nested in it."""
    settings = config.__dict__
    for name in names:
        if settings.get(name) is not None:
            return settings[name]
    nested = (find(value, *names) for value in settings.values() if isinstance(value, PreTrainedConfig))
    return next((value for value in nested if value is not None), None)


def _whole(value: Any, otherwise: int) -> int:
    if isinstance(value, Mapping):
        value = next(iter(value.values()), otherwise)
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value if type(value) is int else otherwise


def words(count: int = TOKENS) -> torch.Tensor:
    return torch.randint(3, WORDS // 2, (ROWS, count))


def candidates(model: nn.Module, config: PreTrainedConfig, places: int | None) -> Iterator[Inputs]:
    """Inputs that may fit, the likeliest first: with labels and without. places: of a text, that an image takes."""
    names = set(inspect.signature(model.forward).parameters)
    fixed: dict[str, Any] = {"use_cache": False} if "use_cache" in names else {}
    if "lengths" in names:
        fixed["lengths"] = [TOKENS] * BATCH
    if "image_grid_thw" in names:
        yield from _gridded(names, config, fixed, places)
    text: Fields = {}
    if "input_ids" in names:
        word = find(config, "image_token_id", "image_token_index", "media_placeholder_token_id", "image_soft_token_id")
        has_image = type(word) is int and "pixel_values" in names
        marks = torch.full((ROWS, places or 4), word) if has_image else None
        text["input_ids"] = words() if marks is None else torch.cat([words(2), marks, words(4)], 1)
        if "bbox" in names:
            corners = torch.randint(0, 30, (ROWS, text["input_ids"].shape[1], 2))
            text["bbox"] = torch.cat([corners, corners + 20], -1)
    if "pixel_values" in names:
        size = _whole(find(config, "image_size", "img_size", "input_size"), 32)
        channels = _whole(find(config, "num_channels", "in_channels", "in_chans"), 3)
        yield from _with_labels(names, text | {"pixel_values": torch.randn(ROWS, channels, size, size)}, fixed)
    if text:
        yield from _with_labels(names, text, fixed)


def _with_labels(
    names: set[str], fields: Fields, fixed: dict[str, Any], joined: tuple[str, ...] = ()
) -> Iterator[Inputs]:
    if "labels" in names and "input_ids" in fields:
        yield Inputs(fields | {"labels": fields["input_ids"].clone()}, fixed, joined=joined)
    decoded = {"decoder_input_ids": words()} if "decoder_input_ids" in names else {}
    yield Inputs(fields | decoded, fixed, has_loss=False, joined=joined)


def _gridded(names: set[str], config: PreTrainedConfig, fixed: dict[str, Any], places: int | None) -> Iterator[Inputs]:
    """Images of 4 x 4 patches, those of all samples in a row."""
    patch = _whole(find(config, "patch_size"), 8)
    channels = _whole(find(config, "in_channels", "in_chans", "num_channels"), 3)
    merged = _whole(find(config, "spatial_merge_size", "merge_size"), 1)
    for frames in (_whole(find(config, "temporal_patch_size"), 1), 1):
        pixels = torch.randn(ROWS, 16, channels * frames * patch * patch)
        image_word = find(config, "image_token_id", "image_token_index")
        if type(image_word) is not int:
            return
        marks = torch.full((ROWS, places or 16 // merged**2), image_word)
        ends = [find(config, f"vision_{end}_token_id") for end in ("start", "end")]
        around = [torch.full((ROWS, 1), word) if type(word) is int else words(1) for word in ends]
        ids = torch.cat([words(2), around[0], marks, around[1], words(3)], 1)
        beside = {**fixed, "image_grid_thw": [[1, 4, 4]] * BATCH}
        if "mm_token_type_ids" in names:
            # Where images stand is asked by Python; here it is the same in every row.
            beside["mm_token_type_ids"] = (ids[:BATCH] == image_word).long().tolist()
        yield from _with_labels(names, {"input_ids": ids, "pixel_values": pixels}, beside, ("pixel_values",))


def places_of(message: str, have: int) -> int | None:
    """Places of a text that an image takes, if a model's complaint says so. have: those that it was given."""
    numbers = re.search(r"tokens: (\d+).*features:? (\d+)", message)
    if not numbers or not int(numbers[1]):
        return None
    each = int(numbers[2]) * have // int(numbers[1])
    return each if each != have and 0 < each <= 300 else None


# The trial of one kind: built, trained by plain PyTorch, captured, and executed.


def build(kind: Kind) -> tuple[nn.Module, Inputs]:
    """A small model and inputs with which it trains. Raises NotTried."""
    first_error = ""
    for scale in SCALES:
        try:
            config = shrunken(CONFIG_MAPPING[kind.name], scale, SETTINGS.get(kind.name, {}))
            torch.manual_seed(0)
            with torch.device("meta"):
                size = sum(p.numel() for p in kind.model(config).parameters())
            if size > MOST_PARAMETERS:
                raise NotTried(f"its smallest configuration here has {size:,} parameters")
            model = kind.model(config).float().train()
        except Exception as error:
            first_error = first_error or f"cannot be built small: {_line(error)}"
            continue
        try:
            return model, _inputs(model, config)
        except NotTried as error:
            first_error = first_error if first_error.startswith("no inputs") else str(error)
    raise NotTried(first_error)


def _inputs(model: nn.Module, config: PreTrainedConfig) -> Inputs:
    """The first candidates with which a step gives finite gradients."""
    first_error, places = "", None
    for _ in range(3):
        torch.manual_seed(1)
        learnt = None
        for inputs in candidates(model, config, places):
            try:
                loss = loss_of(inputs)(copy.deepcopy(model), {name: x[:BATCH] for name, x in inputs.fields.items()})
                loss.backward()
                if loss.ndim == 0 and bool(loss.isfinite()):
                    return inputs
                raise ValueError(f"the loss is {loss}")
            except Exception as error:
                first_error = first_error or _line(error)
                if learnt := places_of(str(error), places or 4):
                    break
        if learnt is None:
            break
        places = learnt
    raise NotTried(f"no inputs were found that it takes: {first_error}")


def task_of(model: nn.Module, inputs: Inputs) -> Task:
    """A task of a copy of the model, equal each time."""
    model = copy.deepcopy(model)
    return Task(
        model=model,
        loss=loss_of(inputs),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        dataset=inputs.fields,
        batch_size=BATCH,
        steps=STEPS,
        interval=STEPS,
        seed=0,
    )


def _trained(task: Task) -> list[bytes]:
    """The last state of plain PyTorch, on the batches of the task's job."""
    torch.manual_seed(2)
    training = PlainTraining(task)
    for step in range(task.steps):
        rows = torch.from_numpy(batch_rows(task.seed, step, task.batch_size, task.rows))
        training.step(step, {name: x[rows] for name, x in task.dataset.items()})
    return [x.detach().numpy().tobytes() for x in training.model.state_dict().values()]


def attempt(name: str, directory: Path) -> dict[str, Any]:
    """What becomes of a kind; the job is left in `directory`."""
    try:
        model, inputs = build(discover()[name])
        try:
            states = [_trained(task_of(model, inputs)) for _ in range(2)]
        except Exception as error:
            raise NotTried(f"PyTorch does not train it deterministically: {_line(error)}") from error
        if states[0] != states[1]:
            raise NotTried("PyTorch's two runs end in different states")
    except NotTried as error:
        return {"outcome": "not tried", "why": str(error)}
    row: dict[str, Any] = {"parameters": sum(parameter.numel() for parameter in model.parameters())}
    try:
        job = Job.from_task(lambda: task_of(model, inputs))
    except CaptureError as error:
        return row | {"outcome": "refused", "why": _line(error)}
    except Exception as error:
        return row | {"outcome": "failed", "why": f"{type(error).__name__}: {_line(error)}"}
    job.write(directory / "job")
    return row | {"operators": len(job.program.nodes)} | execute(directory, "first")


def execute(directory: Path, run: str) -> dict[str, Any]:
    """The job in a directory trained: its root, or why it stopped."""
    try:
        result = Trainer(Job.read(directory / "job"), directory / run).run()
    except Exception as error:
        return {"outcome": "stopped", "why": _line(error)}
    return {"outcome": "captured", "root": result.checkpoint_root.hex()}


def _line(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:400]


# The table of kinds: processes, rows, and the page.


def on_machine(machine: str, name: str, room: str, limit: int) -> dict[str, Any]:
    """What a process under a profile says of a kind. room: the folder of its job; limit: the seconds that it has."""
    words = ("--order", name, room, "first" if machine == FIRST else "second")
    try:
        return dict(json.loads(MACHINES[machine].run(__file__, *words, hours=limit / 3600).splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return {"outcome": "failed", "why": f"no answer within {limit} seconds"}
    except RuntimeError as error:
        return {"outcome": "failed", "why": _line(error)}


def obey(name: str, room: str, run: str) -> None:
    """Does the work of a process, and prints what it finds."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.use_deterministic_algorithms(True)
    print(json.dumps(attempt(name, Path(room)) if run == "first" else execute(Path(room), run)))


def try_one(kind: Kind, limit: int) -> dict[str, Any]:
    """The row of a kind."""
    row: dict[str, Any] = {"name": kind.name, "family": HEADS[kind.head], "class": kind.cls}
    with tempfile.TemporaryDirectory(prefix="models-") as room:
        row |= on_machine(FIRST, kind.name, room, limit)
        if row["outcome"] == "captured":
            other = on_machine(SECOND, kind.name, room, limit)
            row["other root"] = other.get("root", other.get("why"))
    return row | {"torch": torch.__version__, "transformers": transformers.__version__}


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Name -> row; an unfinished last line, of a run that was killed, is left out."""
    rows: dict[str, dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):
            row = json.loads(line)
            rows[row["name"]] = row
    return rows


def is_captured(row: Row) -> bool:
    return row["outcome"] == "captured" and row["root"] == row.get("other root")


def counts(rows: Iterable[Row]) -> tuple[int, int]:
    """(how many are captured and have one root on both machines, how many PyTorch trains)."""
    tried = [row for row in rows if row["outcome"] != "not tried"]
    return sum(is_captured(row) for row in tried), len(tried)


def _outcome(row: Row) -> str:
    if row["outcome"] != "captured":
        return " ".join(f"{row['outcome']}: {row['why']}".split()).replace("|", "\\|")
    return f"`{row['root'][:16]}`" if is_captured(row) else f"two roots: {row['root']} and {row.get('other root')}"


def markdown(rows: Iterable[Row]) -> str:
    """The whole page."""
    rows = sorted(rows, key=lambda row: (str(row["family"]), str(row["name"])))
    captured, tried = counts(rows)
    versions = {name: ", ".join(sorted({row[name] for row in rows})) for name in ("transformers", "torch")}
    lines = [
        f"captured {captured} of {tried} kinds of models of `transformers` {versions['transformers']}\n",
        "# What is captured of Hugging Face's transformers\n",
        "Written by `scripts/try_models.py --write` from `scripts/models/rows.jsonl`; do not edit.\n",
        "A kind is a model type of `transformers` with a head for text. It is built from a small configuration, "
        "without weights, and trained for two steps by AdamW, on random data. It counts if plain PyTorch "
        f"{versions['torch']} trains it to the same bits twice. It is *captured* if `Job.from_task` makes a job of it, "
        f"and the job ends at one root under the hardware profiles *{FIRST}* and *{SECOND}*. Layer drop is switched "
        "off in the configuration: it decides by numbers that are drawn outside of the step.\n",
        "Models are made before capture begins, by PyTorch alone, so that the first weights of some, and their roots, "
        "are one machine's. Within `roundlog.portable`, where `tiebreak job create` makes tasks, they are the same "
        "everywhere.\n",
        "| kind | family | class | parameters | operators | outcome |",
        "|---|---|---|---|---|---|",
    ]
    for row in (row for row in rows if row["outcome"] != "not tried"):
        sizes = [f"{row[name]:,}" if name in row else "-" for name in ("parameters", "operators")]
        lines.append(f"| {' | '.join([row['name'], row['family'], row['class'], *sizes, _outcome(row)])} |")
    others = ", ".join(f"`{row['name']}`" for row in rows if row["outcome"] == "not tried")
    return "\n".join(lines) + (
        "\n\n## Not tried\n\nThese do not count: a library is missing, or the small configuration and the inputs that "
        f"are made by rule do not fit the model: {others or 'none'}.\n"
    )


def run(names: list[str], again: list[str], jobs: int, limit: int, file: Path) -> dict[str, dict[str, Any]]:
    """Tries what is missing in a file of rows. Returns them."""
    kinds, rows = discover(), read(file)
    if unknown := [name for name in names if name not in kinds]:
        raise SystemExit(f"there is no kind {unknown[0]}: HEADS says which tables of transformers are looked up")

    def one(name: str) -> None:
        rows[name] = try_one(kinds[name], limit)
        with file.open("a") as out:
            out.write(json.dumps(rows[name]) + "\n")
        print(f"{name}: {_outcome(rows[name])}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, names or [n for n in kinds if n not in rows or rows[n]["outcome"] in again]))
    file.write_text("".join(json.dumps(rows[name]) + "\n" for name in sorted(rows)))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--order", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this kind; may be repeated")
    parser.add_argument("--again", action="append", default=[], metavar="OUTCOME", help="try such kinds again")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="kinds at a time")
    parser.add_argument("--limit", type=int, default=240, metavar="SECONDS", help="for each kind on each machine")
    parser.add_argument("--rows", type=Path, default=_ROWS, metavar="FILE", help="where rows are kept")
    parser.add_argument("--write", type=Path, metavar="FILE", help="where to write the page")
    options = parser.parse_args()
    if options.order:
        obey(*options.order)
        return 0
    rows = run(options.only, options.again, options.jobs, options.limit, options.rows)
    print("captured {} of {}".format(*counts(rows.values())))
    if options.write is not None:
        options.write.write_text(markdown(rows.values()))
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
