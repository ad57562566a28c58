"""What evaluations ask of a server: several prompts and texts, log-probabilities of prompts and of the likeliest
tokens, texts that end a text, penalties. Each answer is held against other ways to its numbers, and its receipts."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
import torch
from roundlog.generation import Choice, GenerationReceipt, check_text, parse_generation_receipt
from tiebreak.generated_text import StopTexts
from tiebreak.server.exchange_check import wrong_request, wrong_response

from tests.client.server.asking import Exchange, exchange
from tests.client.server.conftest import Served

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"


def ask(served: Served, **fields: object) -> Exchange:
    body: dict[str, object] = {"model": served.service.model, "prompt": "once upon", "max_tokens": 6, "seed": 3}
    found = exchange(
        served.url,
        CHAT if "messages" in fields else TEXT,
        body | fields | ({} if "messages" not in fields else {"prompt": None}),
    )
    assert found.status == 200, found.response
    return found


def receipts(served: Served, found: Exchange) -> list[GenerationReceipt]:
    """The receipts of an answer's texts, each of which its model and both bodies bear out."""
    made = []
    for choice in found.plain["choices"]:
        data = served.service.receipts.receipt(found.plain["id"], choice["index"])
        assert data is not None
        receipt = parse_generation_receipt(data)
        told: list[Any] = []
        ends = StopTexts(served.loaded.tokenizer, receipt.prompt, receipt.stop_texts)
        check = check_text(receipt, served.checker, stop=receipt.stop, ends=ends, tell=told.append)
        assert check.is_right
        assert wrong_request(receipt, served.loaded, found.request) == []
        both = (check.prompt_choices, told)
        assert wrong_response(receipt, served.loaded, found.response, request=found.request, told=both) == []
        made.append(receipt)
    assert found.headers["tiebreak-receipt"] == ", ".join(f"0x{one.digest.hex()}" for one in made)
    return made


def test_an_echoed_prompt_has_the_log_probabilities_that_its_tokens_had_as_they_were_written(served: Served) -> None:
    written = ask(served, temperature=0, logprobs=3, max_tokens=20)
    (receipt,) = receipts(served, written)
    told = written.plain["choices"][0]["logprobs"]
    again = ask(served, prompt=[*receipt.prompt, *receipt.tokens], echo=True, logprobs=3, max_tokens=1, temperature=0)
    (other,) = receipts(served, again)
    echoed = again.plain["choices"][0]["logprobs"]
    count = len(receipt.prompt)
    for name in ("tokens", "token_logprobs", "top_logprobs"):
        assert echoed[name][count : count + 20] == told[name]
    assert echoed["token_logprobs"][0] is echoed["top_logprobs"][0] is None
    assert len(echoed["tokens"]) == count + 21 and other.prompt_logprobs_root is not None
    assert [pair[0] for pair in zip(echoed["tokens"], echoed["text_offset"], strict=True)] == echoed["tokens"]
    # The chosen token is the likeliest one, as `is_greedy` of evaluations reads it.
    for own, likeliest in zip(told["token_logprobs"], told["top_logprobs"], strict=True):
        assert own == max(likeliest.values())


def test_an_echoed_text_stands_before_its_continuation(served: Served) -> None:
    plain, echoed = ask(served, temperature=0), ask(served, temperature=0, echo=True)
    assert echoed.plain["choices"][0]["text"] == "once upon" + plain.plain["choices"][0]["text"]
    (receipt,) = receipts(served, echoed)
    assert receipt.prompt_logprobs_root is None


def test_the_likeliest_tokens_are_those_of_the_models_own_logits(served: Served) -> None:
    found = ask(served, messages=[{"role": "user", "content": "hi"}], logprobs=True, top_logprobs=20, max_tokens=4)
    (receipt,) = receipts(served, found)
    text = torch.tensor([[*receipt.prompt, *receipt.tokens]])
    with torch.no_grad():
        right = served.loaded.model(text).logits[0].double().log_softmax(-1)
    told = found.plain["choices"][0]["logprobs"]["content"]
    for row, place in zip(right[len(receipt.prompt) - 1 :], told, strict=False):
        values = [one["logprob"] for one in place["top_logprobs"]]
        assert values == sorted(values, reverse=True) and len(values) == 20
        np.testing.assert_allclose(values, row.topk(20).values, atol=0.05)  # the model's own are BF16 sums


def test_equally_likely_tokens_are_told_by_their_numbers(served: Served) -> None:
    logits = torch.zeros(1, served.checker.vocabulary)
    logits[0, [9, 40]] = 1.0
    (choice,) = served.checker.likelihoods(logits, [7], 5)
    assert [token for token, _ in choice.likeliest] == [9, 40, 0, 1, 2]
    assert choice.likeliest[2][1] == choice.logprob


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_a_text_ends_before_the_first_text_that_ends_it(served: Served, stream: bool) -> None:
    letters = served.loaded.tokenizer.encode("abcdefghijklmnop", add_special_tokens=False)
    fields: dict[str, Any] = {"logit_bias": dict.fromkeys(map(str, letters), 60), "max_tokens": 60}
    whole = ask(served, **fields).plain["choices"][0]["text"]
    stop = whole[20:23]  # three tokens of one byte
    place = whole.index(stop)
    found = ask(served, **fields, stop=["no such text", stop], stream=stream)
    if stream:
        given = "".join(event["choices"][0]["text"] for event in found.events)
        assert given == whole[:place] and found.events[-1]["choices"][0]["finish_reason"] == "stop"
        return
    (choice,) = found.plain["choices"]
    assert (choice["text"], choice["finish_reason"]) == (whole[:place], "stop")
    (receipt,) = receipts(served, found)
    assert receipt.at_stop_text and 0 < len(receipt.tokens) < 60

    def checked(other: GenerationReceipt) -> bool:
        ends = StopTexts(served.loaded.tokenizer, other.prompt, other.stop_texts)
        return check_text(other, served.checker, stop=other.stop, ends=ends).is_right

    # Its author cuts what the model has said, says that it was cut by its length, or goes on.
    for lie in (
        replace(receipt, tokens=receipt.tokens[:-1]),
        replace(receipt, at_stop_text=False, max_new_tokens=len(receipt.tokens)),
        replace(receipt, stop_texts=("no such text",)),
        replace(receipt, stop_texts=(whole[0],)),
    ):
        assert not checked(lie)
    assert checked(receipt)


@pytest.mark.slow
def test_several_texts_are_those_of_their_seeds_and_the_best_are_the_likeliest(served: Served) -> None:
    several = ask(served, n=4)
    made = receipts(served, several)
    assert [one.choice_index for one in made] == [0, 1, 2, 3] and len({one.tokens for one in made}) == 4
    alone = [ask(served, seed=one.seed).plain["choices"][0]["text"] for one in made]
    assert [choice["text"] for choice in several.plain["choices"]] == alone
    assert made[0].seed == 3 and several.plain["usage"]["completion_tokens"] == sum(len(one.tokens) for one in made)
    best = ask(served, n=2, best_of=4, logprobs=0)
    mean = [float(np.mean(choice["logprobs"]["token_logprobs"])) for choice in best.plain["choices"]]
    all_of_them = ask(served, n=4, logprobs=0).plain["choices"]
    right = sorted((float(np.mean(one["logprobs"]["token_logprobs"])) for one in all_of_them), reverse=True)
    assert mean == right[:2]
    receipts(served, best)
    more = several.response.replace(b'"choices":[', b'"choices":[{"index":9,"text":"a lie"},')
    (clause,) = wrong_response(
        replace(made[1], response_sha256=sha256(more).digest()),
        served.loaded,
        more,
        request=several.request,
        told=((), [Choice(token, 0.0) for token in made[1].tokens]),
    )
    assert clause == "the response is no answer of the server's to such a request"
    lie = replace(made[1], choice_index=2)
    assert any("asks for seed" in clause for clause in wrong_request(lie, served.loaded, several.request))
    assert wrong_request(replace(made[1], choice_index=None), served.loaded, several.request) == [
        "the request asks for 4 texts, and the receipt is of a text alone"
    ]


@pytest.mark.slow
def test_prompts_at_once_get_what_each_gets_alone_in_any_order(served: Served) -> None:
    prompts = ["once", [9, 20, 31], "a rather longer prompt than others", "x", [40]]
    fields: dict[str, Any] = {"logprobs": 2, "echo": True, "max_tokens": 4}
    alone = [ask(served, prompt=prompt, **fields).plain["choices"][0] for prompt in prompts]
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1]):
        found = ask(served, prompt=[prompts[at] for at in order], **fields)
        for place, at in enumerate(order):
            assert found.plain["choices"][place] == alone[at] | {"index": place}
        receipts(served, found)
        assert found.plain["usage"]["completion_tokens"] == 20


@pytest.mark.slow_but("all")
@pytest.mark.parametrize(
    "fields",
    [
        {"presence_penalty": 1.5},
        {"frequency_penalty": 0.75, "presence_penalty": -0.5},
        {"logit_bias": {"50": 3.5, "7": -100, "200": 0}},
        {"repetition_penalty": 1.3, "frequency_penalty": 2.0, "logit_bias": {"9": 2.0}},
    ],
    ids=["presence", "frequency", "bias", "all"],
)
def test_penalties_and_biases_change_logits_as_they_are_defined(served: Served, fields: dict[str, Any]) -> None:
    found = ask(served, temperature=0, max_tokens=25, **fields)
    (receipt,) = receipts(served, found)
    text = [*receipt.prompt, *receipt.tokens]
    rows = np.concatenate([logits.numpy() for _, logits in served.checker.read(text[:-1], {})])
    single = np.float32
    for place in range(len(receipt.prompt), len(text)):
        x = rows[place - 1].copy()
        for token, value in fields.get("logit_bias", {}).items():
            x[int(token)] += single(value)
        for token in set(text[:place]):
            penalty = single(fields.get("repetition_penalty", 1.0))
            x[token] = x[token] * penalty if x[token] < 0 else x[token] / penalty
        for token in set(text[len(receipt.prompt) : place]):
            x[token] -= single(text[len(receipt.prompt) : place].count(token)) * single(
                fields.get("frequency_penalty", 0)
            )
            x[token] -= single(fields.get("presence_penalty", 0))
        assert text[place] == int(x.argmax())
    assert "200" not in receipt.plain()["sampling"].get("logit_bias", {})


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"top_k": 5}, {"top_p": 0.5}])
def test_min_p_keeps_tokens_by_their_share_of_the_likeliest_ones(served: Served, more: dict[str, Any]) -> None:
    greedy = ask(served, temperature=0).plain["choices"][0]["text"]
    assert ask(served, temperature=2, min_p=1, **more).plain["choices"][0]["text"] == greedy
    found = ask(served, temperature=2, min_p=0.6, logprobs=20, max_tokens=30, **more)
    receipts(served, found)
    told = found.plain["choices"][0]["logprobs"]
    for own, likeliest in zip(told["token_logprobs"], told["top_logprobs"], strict=True):
        assert own >= max(likeliest.values()) + 2 * np.log(0.6) - 1e-5


REFUSED: dict[str, dict[str, Any]] = {
    "streams of several": {"n": 2, "stream": True},
    "a stream of an echo": {"echo": True, "stream": True},
    "fewer tried than given": {"n": 3, "best_of": 2},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_answered_is_refused_in_a_sentence(served: Served, name: str) -> None:
    fields = {"model": served.service.model, "prompt": "x", "max_tokens": 2} | REFUSED[name]
    found = exchange(served.url, CHAT if "messages" in fields else TEXT, fields)
    message = found.plain["error"]["message"]
    assert found.status == 400 and message.endswith(".") and any(way in message for way in ("give ", "ask ", "leave "))


def test_a_receipt_with_a_field_at_its_default_is_refused(served: Served) -> None:
    (receipt,) = receipts(served, ask(served, n=2, logprobs=1, echo=True, stop="never there", logit_bias={"5": 1}))[:1]
    plain = receipt.plain()
    assert parse_generation_receipt(receipt.to_json().encode()) == receipt
    changes: list[tuple[str, dict[str, Any]]] = [
        ("sampling", {"min_p": 0.0}),
        ("sampling", {"presence_penalty": 0}),
        ("sampling", {"logit_bias": {}}),
        ("sampling", {"logit_bias": {"05": 1}}),
        ("sampling", {"logit_bias": {"5": 0}}),
        ("sampling", {"stop_texts": []}),
        ("sampling", {"stop_texts": [""]}),
        ("top_logprobs", {"count": 0}),
        ("top_logprobs", {"count": 21}),
        ("top_logprobs", {"root": None}),
    ]
    import json

    for name, change in changes:
        with pytest.raises(ValueError, match=r"^(has|cannot)"):
            parse_generation_receipt(json.dumps(plain | {name: plain[name] | change}).encode())
    for name, root in (("prompt_logprobs_root", sha256(b"x").digest()), ("top_logprobs_root", bytes(32))):
        ends = StopTexts(served.loaded.tokenizer, receipt.prompt, receipt.stop_texts)
        found = check_text(replace(receipt, **{name: root}), served.checker, stop=receipt.stop, ends=ends)
        assert found.wrong_logprobs and not found.is_right
