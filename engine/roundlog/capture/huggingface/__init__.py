"""Training scripts of Hugging Face's `transformers`: a `Trainer` as a task, and the generation of text by a model."""

from roundlog.capture.huggingface.generation_task import (
    NOISE,
    CachedModel,
    Sampling,
    SamplingForm,
    check_generation,
    chosen_tokens,
    generated_tokens,
    generation_arguments,
)
from roundlog.capture.huggingface.trainer_task import trainer_arguments
