"""The cost of certified text: tokens a second against `generate`, of an audit in one pass, and of several at once.

    .venv/bin/python scripts/bench_generation.py [--model FOLDER | --shape smollm2|gpt2|tiny] [--dtype bf16|fp32]
        [--tokens 128] [--prompt 32] [--rows 1 8] [--rounds 3] [--arithmetic hopper] [--processor-time] [--json FILE]

Every round times, one after the other: plain `generate` of transformers with a static cache in the same dtype, the
same text by the engine, its check in one pass, and a batch of as many texts, all of the same length. Ratios are taken
within a round, because machines are noisy; printed are medians. A model without a folder has random weights in the
shape of SmolLM2-135M or GPT-2 124M. Capture is timed apart. The check has to find every text right, and every text of a
batch has to be the one that is generated alone. --processor-time counts the processor time of all threads instead of
the wall clock, for machines that have other work to do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from roundlog.generation import BatchGenerator, Generator, TextRequest, load_model
from roundlog.operators.job_arithmetic import EXACT

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def shaped(shape: str) -> Any:
    """A model of random weights."""
    import transformers

    torch.manual_seed(0)
    if shape == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config())
    wide = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "vocab_size": 49152}
    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 512}
    many = shape == "smollm2"
    heads = {"num_attention_heads": 9 if many else 4, "num_key_value_heads": 3 if many else 2}
    config = transformers.LlamaConfig(
        **(wide if many else small), **heads, tie_word_embeddings=True, max_position_embeddings=2048
    )
    return transformers.LlamaForCausalLM(config)


def plain(model: Any, prompts: list[list[int]], tokens: int) -> None:
    """`generate` with a static cache, greedy, to the last token."""
    model.generate(
        torch.tensor(prompts),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        cache_implementation="static",
        disable_compile=True,
        pad_token_id=0,
    )


def timed(clock: Callable[[], float], work: Callable[[], object]) -> float:
    began = clock()
    work()
    return clock() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--shape", choices=("smollm2", "gpt2", "tiny"), default="smollm2")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--rows", type=int, nargs="*", default=[8], help="of batches")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arithmetic", default=EXACT)
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    clock = time.process_time if given.processor_time else time.perf_counter

    if given.model is not None:
        model: Any = load_model(given.model, dtype=given.dtype).model
    else:
        model = shaped(given.shape).to(DTYPES[given.dtype]).eval()
    size = model.config.get_text_config().vocab_size
    draw = torch.Generator().manual_seed(1)
    prompts = [torch.randint(size, (given.prompt,), generator=draw).tolist() for _ in range(max(given.rows, default=1))]
    generator = Generator(model, positions=given.prompt + given.tokens, arithmetic=given.arithmetic)
    capture = timed(clock, lambda: generator.generate(prompts[0], new_tokens=2))
    text = generator.generate(prompts[0], new_tokens=given.tokens)
    tuple(generator.right_choices(prompts[0], text.tokens))
    batches = {rows: BatchGenerator(generator, rows) for rows in given.rows}

    def all_at_once(rows: int) -> None:
        asked = [TextRequest(prompt, new_tokens=given.tokens) for prompt in prompts[:rows]]
        found = [batches[rows].submit(request) for request in asked]
        if found[0].result() != text:
            raise SystemExit("a text of a batch is another one than alone: tell the authors")
        for one in found:
            one.result()

    for rows in batches:
        all_at_once(rows)
    seconds: dict[str, list[float]] = {}
    for _ in range(given.rounds):
        seconds.setdefault("plain", []).append(timed(clock, lambda: plain(model, prompts[:1], given.tokens)))
        seconds.setdefault("engine", []).append(
            timed(clock, lambda: generator.generate(prompts[0], new_tokens=given.tokens))
        )
        began = clock()
        if tuple(generator.right_choices(prompts[0], text.tokens)) != text.choices:
            raise SystemExit("one pass finds another text than was generated: tell the authors")
        seconds.setdefault("one pass", []).append(clock() - began)
        for rows in batches:
            seconds.setdefault(f"plain, {rows} texts", []).append(
                timed(clock, lambda rows=rows: plain(model, prompts[:rows], given.tokens))  # type: ignore[misc]
            )
            seconds.setdefault(f"engine, {rows} texts", []).append(
                timed(clock, lambda rows=rows: all_at_once(rows))  # type: ignore[misc]
            )
    for batch in batches.values():
        batch.close()

    def ratio(name: str, other: str, factor: float = 1.0) -> float:
        return round(factor * statistics.median(a / b for a, b in zip(seconds[name], seconds[other], strict=True)), 3)

    operators = {f"{rows} x {width}": len(one.nodes) for (rows, width), one in generator.programs.items()}
    told: dict[str, Any] = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "operators, rows x tokens read": operators,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "capture, s": round(capture, 1),
        "seconds": {name: round(statistics.median(times), 3) for name, times in seconds.items()},
        "engine, tokens a second": round(given.tokens / statistics.median(seconds["engine"]), 2),
        "tokens a second, engine / plain": ratio("plain", "engine"),
        "one pass, times as fast as generation": ratio("engine", "one pass"),
    }
    for rows in batches:
        told[f"tokens a second of {rows} texts at once / of one"] = ratio("engine", f"engine, {rows} texts", rows)
        told[f"tokens a second of {rows} texts, engine / plain"] = ratio(
            f"plain, {rows} texts", f"engine, {rows} texts"
        )
    width = max(map(len, told))
    for name, value in told.items():
        print(f"{name:>{width}}  {value}")
    if given.json is not None:
        given.json.write_text(json.dumps(vars(given) | told, default=str, indent=1) + "\n")


if __name__ == "__main__":
    main()
