"""The receipt of a text, held against the rules of docs/receipt.md, in Python alone.

    python conformance/text_receipt.py text.json     says whether it is one, without its model

Where it lies beside second_verifier.py, that runs it. Neither the signature nor the text is checked here.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

FIELDS = {
    *("format", "version", "model", "arithmetic", "versions", "prompt_tokens", "sampling", "tokens", "tokens_hash"),
    *("token_count", "finish_reason", "logprobs_root", "training_receipt", "request_sha256", "response_sha256"),
}
SIGNED = {"signer", "signature"}
PERHAPS = {"prompt_logprobs_root", "top_logprobs", "choice_index"}
SAMPLING_PERHAPS = {"min_p", "presence_penalty", "frequency_penalty", "logit_bias", "stop_texts"}
MODEL = {"name", "revision", "model_weight_hash", "config_hash", "tokenizer_hash", "dtype"}
SAMPLING = {"temperature", "top_k", "top_p", "repetition_penalty", "seed", "max_new_tokens", "stop_tokens"}
VERSIONS = {"tiebreak", "torch", "transformers"}
ARITHMETICS = ("exact", "hopper", "ampere", "volta")


def need(right: bool, words: str) -> None:
    """Raises ValueError with these words where something is not right."""
    if not right:
        raise ValueError(words)


def parse(data: bytes) -> Any:
    """Strict JSON: no key twice, no NaN, no infinity."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        need(len({key for key, _ in items}) == len(items), "it has a key twice")
        return dict(items)

    def refuse(text: str) -> Any:
        raise ValueError(f"it has the number {text}")

    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=pairs, parse_constant=refuse)
    except RecursionError:
        raise ValueError("it is too deep") from None


def number(value: Any, least: float, most: float) -> bool:
    """Whether a value is a number in a range, both ends in it."""
    return type(value) in (int, float) and least <= value <= most


def whole(value: Any, least: int, most: int) -> bool:
    """Whether a value is an integer in a range, both ends in it."""
    return type(value) is int and least <= value <= most


def tokens_of(value: Any, name: str, least: int) -> list[int]:
    """A list of token numbers, at least so many."""
    need(isinstance(value, list) and least <= len(value) <= 2**20, f"{name} is no list of {least} to 2^20 tokens")
    need(all(whole(one, 0, 2**31 - 1) for one in value), f"{name} has what is no token number")
    return list(value)


def check_sampling(how: dict[str, Any]) -> None:
    """The rules of `sampling`."""
    need(how["temperature"] == 0 or number(how["temperature"], 2**-100, sys.float_info.max), "temperature is none")
    need(number(how["temperature"], 0, sys.float_info.max), "temperature is none")
    need(whole(how["top_k"], 0, 2**20), "top_k is none")
    need(number(how["top_p"], 2**-100, 1), "top_p is none")
    need(number(how["repetition_penalty"], 2.0**-100, sys.float_info.max), "repetition_penalty is none")
    drawn = how["temperature"] > 0 or (how["top_k"] == 0 and how["top_p"] == 1)
    need(drawn, "top_k and top_p are of tokens that are drawn, and temperature is 0")
    # What is at its default is left out.
    need(number(how.get("min_p", 1), 0, 1) and how.get("min_p", 1) != 0, "min_p is none")
    need("min_p" not in how or how["temperature"] > 0, "min_p is of tokens that are drawn, and temperature is 0")
    for name in ("presence_penalty", "frequency_penalty"):
        need(number(how.get(name, 1), -2, 2) and how.get(name, 1) != 0, f"{name} is none")
    biases = how.get("logit_bias", {"0": 1})
    need(isinstance(biases, dict) and 0 < len(biases) <= 1024, "logit_bias has not 1 to 1024 tokens")
    for token, bias in biases.items():
        need(re.fullmatch("0|[1-9][0-9]{0,6}", token) is not None and int(token) < 2**20, "logit_bias has no token")
        need(number(bias, -100, 100) and bias != 0, "logit_bias has no number")
    texts = how.get("stop_texts", ["."])
    need(isinstance(texts, list) and 1 <= len(texts) <= 4, "stop_texts are not 1 to 4")
    for one in texts:
        need(isinstance(one, str) and 1 <= len(one) <= 1000, "a stop text has not 1 to 1000 characters")
        need(re.search("[\ud800-\udfff]", one) is None, "a stop text has half a character")
    seed = how["seed"]
    need(isinstance(seed, str) and re.fullmatch("0|[1-9][0-9]{0,19}", seed) is not None, "seed is no text of a number")
    need(int(seed) < 2**64, "seed is 2^64 or more")
    need(whole(how["max_new_tokens"], 1, 2**20), "max_new_tokens is none")


def check_texts_and_hashes(receipt: dict[str, Any]) -> None:
    """The forms of texts and hashes."""
    model = receipt["model"]
    for text in (model["name"], model["revision"], *receipt["versions"].values()):
        need(isinstance(text, str) and re.fullmatch("[ -~]{0,200}", text) is not None, "a text is no printable ASCII")
    perhaps = [receipt[name] for name in ("training_receipt", "request_sha256", "response_sha256")]
    hashes = [model[name] for name in ("model_weight_hash", "config_hash", "tokenizer_hash")]
    hashes += [receipt["logprobs_root"], *(one for one in perhaps if one is not None)]
    hashes += [receipt[name] for name in ("prompt_logprobs_root",) if name in receipt]
    if isinstance(receipt.get("top_logprobs"), dict):
        hashes.append(receipt["top_logprobs"].get("root"))
    for one in hashes:
        need(isinstance(one, str) and re.fullmatch("0x[0-9a-f]{64}", one) is not None, "a hash has another form")
    need(model["dtype"] in ("fp32", "bf16"), "dtype is neither fp32 nor bf16")
    need(receipt["arithmetic"] in ARITHMETICS, "there is no such arithmetic")


def read_text_receipt(data: bytes) -> dict[str, Any]:
    """The receipt in a file's bytes. Raises ValueError, whose words say which rule is broken."""
    need(len(data) <= 2**24, "it has more than 16 MiB")
    receipt = parse(data)
    need(isinstance(receipt, dict) and set(receipt) - PERHAPS in (FIELDS, FIELDS | SIGNED), "it has other fields")
    need(receipt["format"] == "tiebreak generation", "it has another format")
    need(whole(receipt["version"], 1, 1), "it has another version")
    for name, fields, more in (
        ("model", MODEL, ()),
        ("sampling", SAMPLING, SAMPLING_PERHAPS),
        ("versions", VERSIONS, ()),
    ):
        need(isinstance(receipt[name], dict) and set(receipt[name]) - set(more) == fields, f"{name} has other fields")
    check_texts_and_hashes(receipt)
    how = receipt["sampling"]
    check_sampling(how)
    stop, tokens = tokens_of(how["stop_tokens"], "stop_tokens", 0), tokens_of(receipt["tokens"], "tokens", 1)
    tokens_of(receipt["prompt_tokens"], "prompt_tokens", 1)
    need(stop == sorted(set(stop)), "stop_tokens do not ascend")
    need(not set(tokens[:-1]) & set(stop), "it goes on behind a token that ends its text")
    stopped, most = tokens[-1] in stop, how["max_new_tokens"]
    stopped = stopped or ("stop_texts" in how and receipt["finish_reason"] == "stop")
    need(len(tokens) == most or (len(tokens) < most and stopped), "it ends neither where it is stopped nor at the last")
    told = receipt.get("top_logprobs", {"count": 1, "root": receipt["logprobs_root"]})
    need(isinstance(told, dict) and set(told) == {"count", "root"}, "top_logprobs has other fields")
    need(whole(told["count"], 1, 20), "top_logprobs has no count")
    need(whole(receipt.get("choice_index", 0), 0, 2**20), "choice_index is none")
    follows = {
        "tokens_hash": "0x" + sha256(struct.pack(f"<{len(tokens)}I", *tokens)).hexdigest(),
        "token_count": len(tokens),
        "finish_reason": "stop" if stopped else "length",
    }
    for name, value in follows.items():
        need(receipt[name] == value and type(receipt[name]) is type(value), f"{name} does not follow from its tokens")
    if receipt.keys() >= SIGNED:
        for name, digits in (("signer", 40), ("signature", 130)):
            form = isinstance(receipt[name], str) and re.fullmatch(f"0x[0-9a-f]{{{digits}}}", receipt[name])
            need(bool(form), f"{name} has another form")
    return dict(receipt)


def tell_unchecked(receipt: dict[str, Any], directory: Path | None) -> None:
    """Say which fields of a receipt are not checked by repeating a job: those of its folder, and those that no job
    has."""
    if not directory:
        print("config_hash and tokenizer_hash are not checked: give the model's folder as --model.", file=sys.stderr)
    fields = {**receipt, **receipt["sampling"]}
    found = [name for name in ("prompt_logprobs_root", "top_logprobs", "stop_texts") if name in fields]
    if found:
        print(f"not checked: {', '.join(found)}, which no job has.", file=sys.stderr)


TOKENIZER = (
    *("added_tokens.json", "chat_template.jinja", "merges.txt", "special_tokens_map.json", "spiece.model"),
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt"),
)
FILES = {"config_hash": ("config.json", "generation_config.json"), "tokenizer_hash": TOKENIZER}


def files_hashes(directory: Path | None) -> dict[str, str]:
    """Hashes of the files of a model, none without its folder: SHA-256 of what sha256sum prints of those that are
    there, or that of its GGUF file, if it is one."""
    found, gguf = {}, sorted(Path(directory or "").glob("*.gguf"))
    for name, files in FILES.items() if directory else ():
        there = [path for path in (Path(directory or "") / file for file in files) if path.is_file()]
        lines = "".join(f"{sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in there).encode()
        # A GGUF file stands for all where there is no config.json.
        whole = gguf[0].read_bytes() if gguf and not (Path(directory or "") / "config.json").is_file() else lines
        found[name] = "0x" + sha256(whole).hexdigest()
    return found


def main(path: Path) -> int:
    """Say whether a file is the receipt of a text, and return the exit code."""
    try:
        receipt = read_text_receipt(path.read_bytes())
    except (OSError, ValueError) as error:
        print(f"{path.name} is no receipt of a text: {error}.", file=sys.stderr)
        return 1
    print(f"a receipt of {receipt['token_count']} tokens; neither they nor a signature were checked")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])) if len(sys.argv) == 2 else print(__doc__, file=sys.stderr) or 1)
