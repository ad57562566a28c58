"""Text of causal language models outside a job: generated with a cache, and checked in one pass over the whole text, to
the bits of a job that generates it (docs/how-to/generation.md)."""

from roundlog.generation.adapter_merge import merged_adapter
from roundlog.generation.batching import BatchGenerator, RequestDroppedError, TextRequest
from roundlog.generation.generation_receipt import GenerationReceipt, ModelIdentity, parse_generation_receipt
from roundlog.generation.generator import Choice, FinishReason, Generation, Generator
from roundlog.generation.model_folder import (
    FolderError,
    LoadedModel,
    load_model,
    prompt_tokens,
    save_model,
    token_text,
    weight_root,
)
from roundlog.generation.prompt_process import encoded_again
from roundlog.generation.receipt_check import TextCheck, check_text, expected_seconds, make_receipt, other_model
from roundlog.generation.step_modules import TokenSampler, sampler_numbers
from roundlog.generation.trained_weights import set_weights, trained_weights
