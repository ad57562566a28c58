"""Training scripts of Hugging Face's `transformers`: a `Trainer` as a task."""

from roundlog.capture.huggingface.trainer_task import task_of

__all__ = ["task_of"]
