"""Training scripts of Hugging Face's `transformers`: a `Trainer` as a task, and the generation of text by a model."""

from roundlog.capture.huggingface.generation_task import Sampling, generated_tokens, generation_task
from roundlog.capture.huggingface.trainer_task import task_of

__all__ = ["Sampling", "generated_tokens", "generation_task", "task_of"]
