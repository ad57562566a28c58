"""Tasks of evaluations as files that nobody vouches for: configurations of lm-eval (YAML) that run no code, and data
that lies beside them."""

from __future__ import annotations

import copy
import os
import shutil
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import rfc8785
import yaml  # type: ignore[import-untyped]
from roundlog.storage import open_regular

MAX_TASK_BYTES = 1 << 20
_FORMATS = ("json", "csv", "text", "parquet", "arrow")
_CODE = ("class", "include", "unsafe_code", "custom_dataset")
"""Keys by which lm-eval takes code, or other files."""


class TaskError(ValueError):
    """A task that cannot be taken; the message is a sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class TaskFile:
    """A task that was read."""

    name: str
    config: dict[str, Any]
    """For lm-eval, with copies of the data that are this process's own."""
    config_sha256: bytes
    data: dict[str, bytes]
    """SHA-256 of the files of its data, by their places in the configuration."""


def read_task(path: Path, room: Path) -> TaskFile:
    """The task in a YAML file, with its data copied into an empty folder. Raises TaskError."""
    try:
        with open_regular(path) as file:
            text = file.read(MAX_TASK_BYTES + 1)
        plain = yaml.safe_load(text[:MAX_TASK_BYTES]) if len(text) <= MAX_TASK_BYTES else None
        digest = sha256(rfc8785.dumps(plain)).digest()
    except OSError as error:
        raise TaskError(f"{path} cannot be read ({error.strerror}): name the YAML file of a task.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise TaskError(
            f"{path} is no task without code ({reason}): write it in YAML without tags as !function, as lm-eval has it."
        ) from error
    if not isinstance(plain, dict) or not isinstance(plain.get("task"), str):
        raise TaskError(f"{path} names no task: give the YAML file of one task of lm-eval, with task: NAME.")
    if found := [key for key in _CODE if key in plain]:
        raise TaskError(f"{path} has {found[0]}, which takes code or other files: write the task without it.")
    if any(isinstance(one, dict) and one.get("hf_evaluate") for one in plain.get("metric_list") or ()):
        raise TaskError(f"{path} has a metric of hf_evaluate, which is fetched as code: take one of lm-eval's own.")
    files = (plain.get("dataset_kwargs") or {}).get("data_files")
    if plain.get("dataset_path") not in _FORMATS or not isinstance(files, dict) or len(plain["dataset_kwargs"]) != 1:
        raise TaskError(
            f"{path} has data from elsewhere: give dataset_path ({', '.join(_FORMATS)}) and dataset_kwargs with "
            "data_files alone, a file beside it for each split."
        )
    config, digests = copy.deepcopy(plain), dict[str, bytes]()
    for number, (split, name) in enumerate(files.items()):
        if not isinstance(name, str):
            raise TaskError(f"{path} has data_files of several parts: give one file for each split.")
        place = room / f"{number}{Path(name).suffix}"
        try:
            with open_regular(path.parent / name) as source, place.open("wb") as target:
                shutil.copyfileobj(source, target)
        except OSError as error:
            raise TaskError(
                f"the data {name} of {path} cannot be read ({error.strerror}): put it where the task names it."
            ) from error
        digests[name] = sha256(place.read_bytes()).digest()
        config["dataset_kwargs"]["data_files"][split] = os.fspath(place)
    config["dataset_kwargs"]["cache_dir"] = os.fspath(room / "cache")
    return TaskFile(plain["task"], config, digest, digests)
