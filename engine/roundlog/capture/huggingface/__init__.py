"""Training scripts of Hugging Face's `transformers`: a `Trainer` as a task, and the generation of text by a model."""

from roundlog.capture.huggingface.generation_task import check_generation, generated_tokens, generation_task
from roundlog.capture.huggingface.sampling import Sampling, SamplingForm, TokenSampler, sampler_numbers
from roundlog.capture.huggingface.static_cache import NOISE, ChunkReader
from roundlog.capture.huggingface.trainer_task import task_of

__all__ = [
    "NOISE",
    "ChunkReader",
    "Sampling",
    "SamplingForm",
    "TokenSampler",
    "check_generation",
    "generated_tokens",
    "generation_task",
    "sampler_numbers",
    "task_of",
]
