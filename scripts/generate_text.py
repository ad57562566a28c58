"""Text of a language model as a job, which anybody can repeat to the bit.

    .venv/bin/python scripts/generate_text.py MODEL "What is the capital of France?" [--new-tokens 32]
                        [--temperature 0.8] [--top-k 50] [--top-p 0.9] [--seed 7] [--directory FOLDER]

MODEL is a folder with weights, configuration and tokenizer, as `huggingface-cli download
HuggingFaceTB/SmolLM2-135M-Instruct --local-dir SmolLM2-135M-Instruct` leaves it. The question is put by the tokenizer's
chat template, where it has one. FOLDER gets the job and its run, for `tiebreak audit FOLDER/job --run audited --claim
FOLDER/run`. Printed are the text, the root that everybody comes to, and seconds. To make such a job alone:

    tiebreak job create scripts/generate_text.py:task --set model=MODEL --set question="..." --out job
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from roundlog import CaptureError, Job, Task, Trainer
from roundlog.capture import generated_tokens
from roundlog.training import Run


def tokenizer_of(model: str) -> Any:
    """The tokenizer of a folder with a model. Raises CaptureError if there is none."""
    from transformers import AutoTokenizer

    if not (Path(model) / "config.json").is_file():
        raise CaptureError(f"there is no folder {model} with a model: generate_text.py says how to fetch one")
    return AutoTokenizer.from_pretrained(model)


def prompt_of(tokenizer: Any, question: str) -> list[int]:
    """Tokens of a question, as the model was taught to be asked."""
    if not tokenizer.chat_template:
        return list(tokenizer(question)["input_ids"])
    said = [{"role": "user", "content": question}]
    return list(tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=True)["input_ids"])


def stop_tokens(tokenizer: Any) -> list[int]:
    return [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]


def task(
    model: str,
    question: str,
    new_tokens: int = 32,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
) -> Task:
    """The task of a folder with a model and a question. Raises CaptureError for what nothing can be generated of."""
    from transformers import AutoModelForCausalLM

    tokenizer = tokenizer_of(model)
    return Task.from_causal_lm(
        # transformers keeps the format of the weights.
        AutoModelForCausalLM.from_pretrained(model, attn_implementation="sdpa"),
        [prompt_of(tokenizer, question)],
        new_tokens=new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        stop=stop_tokens(tokenizer),
        seed=seed,
    )


def text_of(model: str, job: Job, run_dir: Path) -> str:
    """The text that a run of such a job has generated."""
    tokenizer = tokenizer_of(model)
    last = Run(job, run_dir).newest(job.spec.intervals)[1]
    states = dict(zip(job.program.state_names, last, strict=True))
    (tokens,) = generated_tokens(states, stop_tokens(tokenizer))
    return str(tokenizer.decode(tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("question")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--directory", type=Path)
    words = vars(parser.parse_args())
    with tempfile.TemporaryDirectory() as kept:
        directory = words.pop("directory") or Path(kept)
        if any((directory / name).exists() for name in ("job", "run")):
            sys.exit(f"{directory} has a job or a run already: choose another folder")
        began = time.perf_counter()
        try:
            job = Job.from_task(task(**words))
        except CaptureError as error:
            sys.exit(str(error))
        job.write(directory / "job")
        captured = time.perf_counter()
        result = Trainer(job, directory / "run").run()
        ended = time.perf_counter()
        print(text_of(words["model"], job, directory / "run"))
        print(f"root {result.checkpoint_root.hex()}")
        print(
            f"{captured - began:.0f} s to capture {len(job.program.nodes):,} operators a token; "
            f"{job.spec.steps} tokens read or written in {ended - captured:.1f} s"
        )


if __name__ == "__main__":
    main()
