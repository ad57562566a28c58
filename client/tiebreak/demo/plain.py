"""The same training without the engine: FP32 PyTorch as everybody writes it. It exists to show the problem.

Run as a program, in a fresh process under some hardware profile, it prints the hash of what was trained.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from hashlib import sha256

import torch
from roundlog.capture import Task
from roundlog.randomness import batch_rows


def train_plain(task: Task, on_step: Callable[[int], None] | None = None) -> str:
    """Trains with the model, data, order, optimizer and schedule of `task`, and nothing of the engine's arithmetic.

    Returns the SHA-256, in hex, of the bytes of all parameters and buffers, in the order of the model's state dict.
    """
    schedule = torch.optim.lr_scheduler.LambdaLR(task.optimizer, task.schedule)
    for step in range(task.steps):
        rows = torch.from_numpy(batch_rows(task.seed, step, task.batch_size, task.rows))
        task.optimizer.zero_grad()
        task.loss(task.model, {name: field[rows] for name, field in task.dataset.items()}).backward()
        task.optimizer.step()
        schedule.step()
        if on_step is not None:
            on_step(step)
    digest = sha256()
    for tensor in task.model.state_dict().values():
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    """Prints one line a step (for the progress bar of whoever started this), then the hash."""
    from roundlog.examples.digits import digits

    def tell(step: int) -> None:
        print(f"step {step}", flush=True)

    print(train_plain(digits(), tell))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
