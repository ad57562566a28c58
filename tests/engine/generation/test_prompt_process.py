"""Templates and tokenizers of strangers: those that run for ever, or fill the memory, are refused in one sentence."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog.generation import FolderError, folder_bounds, prompt_process, prompt_tokens, token_text
from roundlog.generation.prompt_process import encoded_again

transformers = pytest.importorskip("transformers")

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hé, who was\nEuler? ✓ "}]

TEMPLATES = {
    "plain": "{% for one in messages %}<{{ one['role'] }}>{{ one['content'] }}{% endfor %}",
    "of special tokens": "{{ bos_token }}{% for one in messages %}{{ one.content | trim }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}",
    "with a day and JSON": "{{ strftime_now('%Y') }}{{ messages | tojson }}{% for a in 'ab' %}{% break %}{% endfor %}",
}

FOREVER = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
HOSTILE_TEMPLATES = {
    "loops": (FOREVER, "takes longer than 1 s"),
    "a long text": ("{{ 'a' * 20000000 }}", "a text of more than 16777216 characters"),
    "gigabytes by a filter": ("{{ 'a' | center(10**11) }}", "memory"),
    "gigabytes by doubling": (
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "memory",
    ),
    "an exception": ("{{ raise_exception('no\nsystem role') }}", "no system role"),
    "what is no template": ("{% for %}", "Expected"),
    "deep nesting": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "("),
    "attributes of Python": ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
}


def tokenizer_of(change: dict[str, Any] | None = None, template: str | None = None) -> Any:
    """A tokenizer of bytes and of "the", with other parts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: number for number, word in enumerate(["<s>", "</s>", *letters, "▁", "th", "the"])}
    plain = Tokenizer(models.BPE(vocab=words, merges=[("t", "h"), ("th", "e")]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    plain = Tokenizer.from_str(json.dumps(json.loads(plain.to_str()) | (change or {})))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, bos_token="<s>", eos_token="</s>", chat_template=template
    )


BEGIN = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
}


@pytest.mark.slow_but("of special tokens")
@pytest.mark.parametrize("name", TEMPLATES)
def test_tokens_are_those_of_the_tokenizer_itself(name: str) -> None:
    tokenizer = tokenizer_of({"post_processor": BEGIN}, TEMPLATES[name])
    wanted = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert prompt_tokens(tokenizer, MESSAGES) == wanted
    assert prompt_tokens(tokenizer, "Hé, ✓") == tokenizer("Hé, ✓")["input_ids"]
    assert prompt_tokens(tokenizer, "")[0] == 0


@pytest.mark.slow_cases("loops", "gigabytes by a filter")
@pytest.mark.parametrize("name", HOSTILE_TEMPLATES)
def test_a_hostile_template_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a bounded time, and the next prompt is taken."""
    monkeypatch.setattr(prompt_process, "MAX_SECONDS", 1.0 if name == "loops" else 20.0)
    template, said = HOSTILE_TEMPLATES[name]
    tokenizer = tokenizer_of(template=template)
    began = time.monotonic()
    with pytest.raises(FolderError, match="the chat template does not take these messages") as refusal:
        prompt_tokens(tokenizer, MESSAGES)
    assert said in str(refusal.value) and "\n" not in str(refusal.value) and len(str(refusal.value)) < 500
    assert time.monotonic() - began < 60
    assert len(prompt_tokens(tokenizer, "abc")) == 3


HOSTILE_TOKENIZERS = {
    "a replacement that doubles, forty times": {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40,
        }
    },
    "an expression that tries everything": {
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "(a|aa|aaa)+(?=b)|((a+)+)+c"},
            "behavior": "Isolated",
            "invert": False,
        }
    },
}


@pytest.mark.slow_cases("a replacement*")
@pytest.mark.parametrize("name", HOSTILE_TOKENIZERS)
def test_a_hostile_tokenizer_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_process, "MAX_SECONDS", 2.0)
    began = time.monotonic()
    with pytest.raises(FolderError, match="the tokenizer does not take this text") as refusal:
        prompt_tokens(tokenizer_of(HOSTILE_TOKENIZERS[name]), "a" * 3000)
    assert len(str(refusal.value)) < 500 and time.monotonic() - began < 60


HOSTILE_DECODERS: dict[str, tuple[dict[str, str], str, int, str]] = {
    "an expression that panics": ({"Regex": "((a+)+)+c"}, "", 1, "retry-limit-in-match over"),
    "expressions that take for ever": ({"Regex": "(a|aa)+(?=b)"}, "", 900, "takes longer than 2 s"),
    "a replacement that doubles, forty times": ({"String": "a"}, "aa", 40, "ended its process, as for want of memory"),
}


@pytest.mark.slow_cases("expressions that take for ever", "a replacement*")
@pytest.mark.parametrize("name", HOSTILE_DECODERS)
def test_a_hostile_decoder_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the decoder that is asked next answers."""
    monkeypatch.setattr(prompt_process, "MAX_SECONDS", 2.0 if "for ever" in name else 60.0)
    pattern, content, times, said = HOSTILE_DECODERS[name]
    replaces = [{"type": "Replace", "pattern": pattern, "content": content}] * times
    decoder = {"type": "Sequence", "decoders": [{"type": "Fuse"}, *replaces]}
    tokenizer = tokenizer_of({"decoder": decoder})
    letter = tokenizer.convert_tokens_to_ids("a")
    with pytest.raises(FolderError, match="the tokenizer makes no text of its tokens") as refusal:
        token_text(tokenizer, [letter] * 26)
    assert said in str(refusal.value) and "\n" not in str(refusal.value) and len(str(refusal.value)) < 500
    other = tokenizer.convert_tokens_to_ids("e")
    assert token_text(tokenizer, [0, other, 1]) == "<s>e</s>"
    assert token_text(tokenizer, [0, other, 1], skip_special=True) == "e"


def panic() -> int:
    from tokenizers import Regex, normalizers

    return len(normalizers.Replace(Regex("((a+)+)+c"), "").normalize_str("a" * 30))


def tells_nothing() -> int:
    os._exit(1)


APART: dict[str, tuple[Callable[[], int], str, str]] = {
    "memory": (lambda: len(bytearray(2 << 30)), "BoundError", "takes more than 2 s or 1024 MiB"),
    "memory of torch": (lambda: torch.zeros(1 << 29).numel(), "RuntimeError", "can't allocate memory"),
    "memory of many objects": (lambda: len([[] for _ in range(1 << 28)]), "BoundError", "takes more than 2 s"),
    "time": (lambda: sum(1 for _ in iter(int, 1)), "BoundError", "takes more than 2 s or 1024 MiB"),
    "no answer": (tells_nothing, "BoundError", "takes more than 2 s or 1024 MiB"),
    "a panic": (panic, "PanicException", "retry-limit-in-match over"),
    "an error": (lambda: [1, 2].index(3), "ValueError", "3 is not in list"),
}


@pytest.mark.slow_but("an error", "no answer")
@pytest.mark.parametrize("name", APART)
def test_work_apart_is_bounded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_bounds, "MAX_SECONDS", 2.0)
    work, kind, said = APART[name]
    with pytest.raises(Exception, match=said) as refusal:
        folder_bounds.tried(work)
    assert type(refusal.value).__name__ == kind
    assert folder_bounds.tried(lambda: 7) == 7


@pytest.mark.slow
def test_weights_are_read_in_a_bounded_time_and_memory() -> None:
    with pytest.raises((MemoryError, RuntimeError)), prompt_process.limits(60.0, 1 << 28):
        torch.zeros(1 << 29)
    with pytest.raises(TimeoutError), prompt_process.limits(0.2, 1 << 28):
        for _ in iter(int, 1):
            pass
    assert torch.zeros(1 << 29)[0] == 0, "not bounded any more"


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="asks Linux about a process")
def test_a_process_ends_with_its_tokenizer_and_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIEBREAK_PRIVATE_KEY", "0x" + "12" * 32)
    tokenizer = tokenizer_of(template=TEMPLATES["plain"])
    assert prompt_tokens(tokenizer, MESSAGES)
    process = prompt_process._PROCESSES[tokenizer]._process
    assert b"TIEBREAK_PRIVATE_KEY" not in Path(f"/proc/{process.pid}/environ").read_bytes()
    before = process.pid
    assert prompt_tokens(tokenizer, MESSAGES) and prompt_process._PROCESSES[tokenizer]._process.pid == before
    process.kill()
    process.wait()
    assert prompt_tokens(tokenizer, MESSAGES), "another one begins"
    after = prompt_process._PROCESSES[tokenizer]._process
    del tokenizer
    assert after.wait(10) is not None and not Path(f"/proc/{after.pid}").exists()


SPACES = {
    "pre_tokenizer": None,
    "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]},
    "decoder": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]},
}  # fmt: skip
"""Puts a space before what begins a text or stands behind a special token, and drops one that is shown first."""


@pytest.mark.slow_but("words")
@pytest.mark.parametrize("change", [{}, SPACES], ids=["bytes", "words"])
def test_prompts_of_texts_and_messages_are_what_their_shown_text_gives(change: dict[str, Any]) -> None:
    tokenizer, draw = tokenizer_of(change | {"post_processor": BEGIN}, TEMPLATES["of special tokens"]), random.Random(4)
    pieces = ["the", "th e", " is", "  ", "<s>", "</s>", "<assistant>"]
    pieces += [] if change else ["\n", "é✓🙂", "<49160>", "\u200b"]
    for _ in range(12):
        text = "".join(draw.choice(pieces) for _ in range(draw.randrange(1, 7)))
        for prompt in (text, [{"role": "user", "content": text}]):
            tokens = prompt_tokens(tokenizer, prompt)
            assert encoded_again(tokenizer, tokens) == tokens, prompt
    right = prompt_tokens(tokenizer, "the cat")
    names = "".join(tokenizer.convert_ids_to_tokens(right[1:]))
    letters = [0, *map(tokenizer.convert_tokens_to_ids, names)]
    for other in (letters, [*right, 49160], [right[0], 49160, *right[1:]]):
        assert encoded_again(tokenizer, other) != other
