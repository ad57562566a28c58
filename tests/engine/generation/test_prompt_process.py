"""Templates and tokenizers of strangers: those that run for ever, or fill the memory, are refused in one sentence."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from roundlog.generation import FolderError, prompt_process, prompt_tokens
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
    "gigabytes by a product": ("{{ 'a' * 10**12 }}", "memory"),
    "gigabytes by a filter": ("{{ 'a' | center(10**11) }}", "memory"),
    "gigabytes by doubling": (
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "memory",
    ),
    "gigabytes of a list": ("{{ ([0] * 10**11) | length }}", "memory"),
    "an exception": ("{{ raise_exception('no\nsystem role') }}", "no system role"),
    "what is no template": ("{% for %}", "Expected"),
    "deep nesting": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "("),
    "attributes of Python": ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
}


def tokenizer_of(change: dict[str, Any] | None = None, template: str | None = None) -> Any:
    """A tokenizer of bytes, with other parts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: number for number, word in enumerate(["<s>", "</s>", *letters])}
    plain = Tokenizer(models.BPE(vocab=words, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    plain = Tokenizer.from_str(json.dumps(json.loads(plain.to_str()) | (change or {})))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, bos_token="<s>", eos_token="</s>", chat_template=template
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_tokens_are_those_of_the_tokenizer_itself(name: str) -> None:
    after = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    }
    after |= {
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
    }
    tokenizer = tokenizer_of({"post_processor": after}, TEMPLATES[name])
    wanted = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert prompt_tokens(tokenizer, MESSAGES) == wanted
    assert prompt_tokens(tokenizer, "Hé, ✓") == tokenizer("Hé, ✓")["input_ids"]
    assert prompt_tokens(tokenizer, "")[0] == 0


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


@pytest.mark.parametrize("name", HOSTILE_TOKENIZERS)
def test_a_hostile_tokenizer_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_process, "MAX_SECONDS", 2.0)
    began = time.monotonic()
    with pytest.raises(FolderError, match="the tokenizer does not take this text") as refusal:
        prompt_tokens(tokenizer_of(HOSTILE_TOKENIZERS[name]), "a" * 3000)
    assert len(str(refusal.value)) < 500 and time.monotonic() - began < 60


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


def trained_tokenizers() -> dict[str, Any]:
    """Tokenizers of the usual kinds, with merged tokens: of bytes, of words that a space begins, by a normalizer or
    by what splits a text, and of words without spaces between special tokens."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    corpus, special = (
        ["What is the capital of France? the cat and the theme <assistant>"] * 3,
        ["<s>", "</s>", "<unk>"],
    )
    spaces = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    prepend = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    bpe, every = models.BPE, {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    parts: dict[str, tuple[Any, Any, Any, Any, Any]] = {
        "bytes": (bpe(), None, pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel(), every),
        "words": (bpe(unk_token="<unk>"), prepend, None, spaces, {}),
        "first word": (bpe(unk_token="<unk>"), None, pre_tokenizers.Metaspace(prepend_scheme="first"), spaces, {}),
        "lower case": (
            models.WordPiece(unk_token="<unk>"), normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(),
            decoders.WordPiece(), {},
        ),
    }  # fmt: skip
    found = {}
    for name, (model, normalizer, splits, decoder, options) in parts.items():
        plain: Any = Tokenizer(model)
        for part, value in (("normalizer", normalizer), ("pre_tokenizer", splits), ("decoder", decoder)):
            if value is not None:
                setattr(plain, part, value)
        kind = trainers.WordPieceTrainer if name == "lower case" else trainers.BpeTrainer
        plain.train_from_iterator(corpus, kind(vocab_size=330, special_tokens=special, show_progress=False, **options))
        around = "<s> $A </s>" if name == "lower case" else "<s> $A"
        plain.post_processor = processors.TemplateProcessing(single=around, special_tokens=[("<s>", 0), ("</s>", 1)])
        found[name] = transformers.PreTrainedTokenizerFast(
            tokenizer_object=plain, bos_token="<s>", eos_token="</s>", chat_template=TEMPLATES["of special tokens"]
        )
    return found


def test_prompts_of_texts_and_messages_are_what_their_shown_text_gives() -> None:
    draw = random.Random(4)
    known = ["What", " is the", " capital", " ", "  ", "<s>", "</s>", "<assistant>"]
    others = ["\n", "é", "✓🙂", "<49160>", "▁", "\u200b"]
    for name, tokenizer in trained_tokenizers().items():
        for _ in range(25):
            text = "".join(draw.choice(known + others * (name == "bytes")) for _ in range(draw.randrange(1, 7)))
            for prompt in (text, [{"role": "user", "content": text}]):
                tokens = prompt_tokens(tokenizer, prompt)
                assert encoded_again(tokenizer, tokens) == tokens, (name, prompt)
        right = prompt_tokens(tokenizer, "the capital")
        merged = next(token for token in right if len(tokenizer.decode([token]).strip()) > 2 and token > 2)
        inner = "##" if name == "lower case" else ""
        names = [inner * bool(at) + one for at, one in enumerate(tokenizer.convert_ids_to_tokens(merged))]
        letters = tokenizer.convert_tokens_to_ids(names)
        place = right.index(merged)
        for other in ([*right[:place], *letters, *right[place + 1 :]], [*right[:2], 49160, *right[2:]], [*right, 400]):
            assert encoded_again(tokenizer, other) != other, name
