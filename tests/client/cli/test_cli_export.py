"""`tiebreak export`: the model that a run has trained, as a file."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import roundlog
import torch
from job_sources import gpt_bf16
from safetensors.torch import load_file

from tests.client.cli.cli_world import Run, Trained, refused


def test_a_trained_model_is_exported(run: Run, trained: Trained, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    for steps, option in ((4, ()), (2, ("--steps", 2))):
        done = run("export", trained.run, "--to", file, *option)
        assert done.exit_code == 0, done.output
        assert f"{steps} steps" in re.sub(r"\s+", " ", done.stdout)
        wanted = gpt_bf16().model
        roundlog.load_into(wanted, trained.run, steps=steps)
        model = gpt_bf16().model
        model.load_state_dict(load_file(file), strict=True)
        assert all(torch.equal(one, wanted.state_dict()[name]) for name, one in model.state_dict().items())
    fetched = shutil.copy(trained.run / "checkpoints" / "00000004.safetensors", tmp_path / "collected.safetensors")
    told = json.loads(run("export", fetched, "--to", file, "--json").stdout)
    assert (told["state"], told["steps"], told["model"]) == (str(fetched), None, str(file))
    assert told["tensors"] == len(load_file(file)) and told["left_out"] == len(load_file(fetched)) - told["tensors"]
    assert told["bytes"] == sum(tensor.nbytes for tensor in load_file(file).values())


def test_what_cannot_be_exported_is_refused_in_a_sentence(run: Run, trained: Trained, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"mine")
    refused(run("export", trained.job, "--to", file), "is not the directory of a run", "name the directory")
    refused(run("export", trained.run, "--to", tmp_path, "--json"), "is a directory: name a file in it")
    refused(run("export", trained.run, "--to", file, "--steps", 3), "no state after 3 steps: choose one of 2, 4")
    refused(run("export", trained.run, "--to", file, "--max-memory", "0.001MB"), "allow them with --max-memory")
    damaged = tmp_path / "damaged"
    shutil.copytree(trained.run, damaged)
    state = damaged / "checkpoints" / "00000004.safetensors"
    state.write_bytes(state.read_bytes()[:-1])
    refused(run("export", damaged, "--to", file), str(state), "bytes where its tensors need")
    state.write_bytes(b"")
    refused(run("export", damaged, "--to", file), str(state), "`tiebreak train`")
    assert file.read_bytes() == b"mine"
