"""`train()` of the fine-tune's own trainer, on the batches of its job, from the job's first state.

    .venv/bin/python scripts/fine_tuning/plain.py JOB MODEL TEXT STEPS

Prints the losses of all steps as JSON, in the last line.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path


def losses(directory: Path, model: Path, text: Path, steps: int) -> list[float]:
    import torch
    from roundlog.capture.captured import model_tensors
    from roundlog.randomness import batch_rows
    from roundlog.training.job import Job

    from fine_tuning.lora_task import BATCH, rows_of, trainer_of

    job = Job.read(directory)
    rows = rows_of(model, text)
    ordered = [rows[row] for step in range(steps) for row in batch_rows(job.spec.seed, step, BATCH, len(rows))]
    with tempfile.TemporaryDirectory() as output:
        more = {"output_dir": output, "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True}
        trainer = trainer_of(model, ordered, steps, train_sampling_strategy="sequential", **more)
        # The adapters of a job are drawn by its own generator.
        with torch.no_grad():
            for name, tensor in model_tensors(trainer.model).items():
                tensor.copy_(job.initial[name])
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    job, model, text, count = sys.argv[1:]
    print(json.dumps(losses(Path(job), Path(model), Path(text), int(count))))
