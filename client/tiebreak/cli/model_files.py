"""`tiebreak export`: the model that a run has trained; and `tiebreak model`: language models as files, GGUF as a folder
of safetensors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tiebreak.cli import output
from tiebreak.cli.failures import CommandError, WrongUsage
from tiebreak.cli.generation import DTYPE, WeightFormat
from tiebreak.cli.hub_folder import HubOptions, new_folder
from tiebreak.cli.option_groups import JSON, MEMORY, argument, command, option
from tiebreak.cli.text_checks import read_model


@command(
    "export",
    "tiebreak export trained --to model.safetensors",
    "tiebreak export collected.safetensors --to my_model/model.safetensors",
    "tiebreak export trained --hub-folder mine --job job --base SmolLM2-135M-Instruct --receipt training.json",
)
def export(
    source: Path = argument("RUN|FILE", "Directory of a run, or a state as `job collect` fetches it."),
    to: Path | None = option("Where to write the model; ends in .safetensors.", metavar="FILE"),
    steps: int | None = option(
        "The state after N steps, where the run has kept it. [default: its newest]", metavar="N", min=1
    ),
    max_memory: int = MEMORY,
    *,
    hub: HubOptions,
    json: bool = JSON,
) -> None:
    """Write the model that a run has trained to a file of its own, for PyTorch and transformers.

    Names are those of the module's `state_dict`, and dtypes those that it was trained in; tied tensors stand under the
    first of their names, and buffers of dtypes that no state has, such as uint8, are left to the model that makes them
    (load it with strict=False then). No root is checked: do that before by `audit` or `verify --root`, where the
    state comes from others.

    With --hub-folder a language model is written into a folder of Hugging Face: weights, LoRA adapters merged,
    configuration, tokenizer. A merged weight is W + s (B A), each operation rounded once, with the factor s of the
    job's program: every machine has the same bits, and so the same hash of the weights. With --receipt the state is
    held against its root first (exit code 3 if it is another one), and the folder can be uploaded: it has a card with
    roots, scores and the lines by which strangers check them, the receipt, and a bundle that `model_signing verify key`
    accepts, signed by --signing-key and the account.
    """
    from roundlog.training import trained_state

    is_for_hub = replace(hub, keystore=None) != HubOptions()
    if (to is None) is not is_for_hub or (is_for_hub and steps is not None):
        raise WrongUsage("a model goes to a file, with --to, or as its run has ended, to a folder, with --hub-folder.")
    if to is None:
        hub.write(source, max_memory, json)
        return
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


@command("model export", "tiebreak model export smollm2 --out SmolLM2-135M-Instruct --dtype bf16")
def export_model(
    source: Path = argument("MODEL", "A GGUF file, or a folder of Hugging Face."),
    out: Path = option("Folder for the files; made, or empty.", ..., "DIR"),
    dtype: WeightFormat | None = DTYPE,
    json: bool = JSON,
) -> None:
    """Write a model into a folder of Hugging Face: weights as safetensors, in FP32 or BF16, config, tokenizer.

    Each weight is rounded once, and the folder is read again before it has its name. The hash of the weights is that of
    the source read with the same --dtype; those of configuration and tokenizer, which are other files, are not.
    """
    from roundlog.generation import save_model

    with new_folder(out) as room:
        loaded = read_model(source, dtype)
        made = save_model(loaded, room)
    facts: dict[str, object] = {
        "model_weight_hash": made.model_weight_hash,
        "config_hash": made.config_hash,
        "tokenizer_hash": made.tokenizer_hash,
    }
    shown = {name.replace("_", " "): value for name, value in facts.items()}
    output.show_result(json, {"model": out} | facts, f"Model in {out}", shown)
