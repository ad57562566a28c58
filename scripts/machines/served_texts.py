"""The process that serves texts on one machine: models in folders, each in some of the ways that make no difference."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from http.client import HTTPConnection
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from roundlog.capture.huggingface import Sampling
from roundlog.generation import (
    GenerationReceipt,
    Generator,
    LoadedModel,
    check_text,
    load_model,
    make_receipt,
    parse_generation_receipt,
)
from tiebreak.server import CompletionServer, IssuedReceipts, TextService, listen_at

from machines.text_models import VOCABULARY

CLIENTS = 8
_VERSION = "0"
"""In place of ours: a table of receipts outlives it."""


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """A way to serve texts. rows: texts at once. chunk: tokens of a prompt that are read at once; 0: all of the
    longest. positions: of the cache. clients: how many ask at a time; with one, a text is alone."""

    rows: int
    chunk: int
    positions: int
    clients: int


OPTIONS = [ServingOptions(*one) for one in product((1, 8), (1, 7, 0), (64, 512), (1, CLIENTS))]

_DRAWN = Sampling(temperature=0.9, top_k=40, top_p=0.95, repetition_penalty=1.1)


@dataclass(frozen=True, slots=True)
class AskedText:
    """A text that is asked for, in all ways the same."""

    prompt: list[int]
    new_tokens: int
    sampling: Sampling
    seed: int

    def body(self, model: str) -> dict[str, object]:
        """The request to a server."""
        how = asdict(self.sampling) | {"logit_bias": dict(self.sampling.logit_bias)}
        return {"model": model, "prompt": self.prompt, "max_tokens": self.new_tokens, "seed": self.seed, **how}


def _asked() -> list[AskedText]:
    draw, found = torch.Generator().manual_seed(1), []
    for number, length in enumerate((1, 3, 7, 8, 13, 16, 20, 24)):
        prompt = torch.randint(6, VOCABULARY, (length,), generator=draw).tolist()
        found.append(AskedText(prompt, 6 + 2 * number, Sampling() if number == 3 else _DRAWN, seed=number))
    return found


ASKED = _asked()


@dataclass(frozen=True, slots=True)
class ServedTexts:
    """Results of one model, served in one way on one machine: digests in hex.

    receipts: of the texts of ASKED by the server, without the hashes of request and response, which name the hour.
    alone: of the longest, by `generate`. wrong: texts that a repetition in one pass does not find right. plain: of the
    logits of plain PyTorch for the longest text: in one pass, in a batch, and token by token."""

    receipts: list[str]
    alone: str
    wrong: int
    plain: list[str]
    seconds: float


def serve_texts(folder: Path, way: ServingOptions, room: Path) -> ServedTexts:
    """Serves a model. room: an empty folder for receipts."""
    started = time.monotonic()
    loaded = load_model(folder, name=folder.name)
    longest = ASKED[-1]
    generator = Generator(loaded.model, positions=way.positions, chunk=way.chunk or len(longest.prompt))
    service = TextService(loaded, generator, IssuedReceipts(room), tiebreak_version=_VERSION, rows=way.rows)
    service.prepare()
    with (
        listen_at("127.0.0.1", 0) as listening,
        CompletionServer(service, listening) as server,
        ThreadPoolExecutor(way.clients) as clients,
    ):
        found = list(clients.map(lambda asked: _receipt(server.url, asked, folder.name), ASKED))
    service.close()
    # The programs are the generator's, so nothing is captured again.
    text = generator.generate(
        longest.prompt, new_tokens=longest.new_tokens, sampling=longest.sampling, stop=loaded.stop, seed=longest.seed
    )
    alone = make_receipt(
        loaded,
        generator,
        longest.prompt,
        text,
        sampling=longest.sampling,
        seed=longest.seed,
        max_new_tokens=longest.new_tokens,
        tiebreak_version=_VERSION,
    )
    return ServedTexts(
        receipts=[one.digest.hex() for one in found],
        alone=alone.digest.hex(),
        wrong=sum(not check_text(one, generator, stop=loaded.stop).is_right for one in found),
        plain=[
            sha256(one.numpy().tobytes()).hexdigest() for one in plain_logits(loaded, [*longest.prompt, *text.tokens])
        ],
        seconds=round(time.monotonic() - started, 1),
    )


def _receipt(url: str, asked: AskedText, model: str) -> GenerationReceipt:
    """The receipt of a text that a server is asked for."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=1800)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(asked.body(model)), headers)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"the server refuses a text: {body.decode(errors='replace')}")
        connection.request("GET", f"/v1/receipts/{answer.headers['Tiebreak-Receipt']}")
        receipt = parse_generation_receipt(connection.getresponse().read())
    finally:
        connection.close()
    return replace(receipt, request_sha256=None, response_sha256=None)


def plain_logits(loaded: LoadedModel, tokens: Sequence[int]) -> list[torch.Tensor]:
    """Logits f32[T, V] of a text by plain PyTorch: in one pass, in a batch of eight, and token by token."""
    model: Any = loaded.model
    with torch.no_grad():
        row = torch.tensor([tokens])
        passed = model(input_ids=row, use_cache=False).logits[0]
        batched = model(input_ids=row.expand(CLIENTS, -1), use_cache=False).logits[CLIENTS // 2]
        kept, parts = None, []
        for token in tokens:
            read = model(input_ids=torch.tensor([[token]]), past_key_values=kept, use_cache=True)
            kept = read.past_key_values
            parts.append(read.logits[0])
    return [one.float().contiguous() for one in (passed, batched, torch.cat(parts))]


def be_a_machine_that_serves(plan_path: Path) -> None:
    """Serves what a plan says: a list of {"model": folder, "way": ServingOptions}. Prints a line of JSON for each."""
    for entry in json.loads(plan_path.read_text()):
        with tempfile.TemporaryDirectory(prefix="receipts-") as room:
            found = serve_texts(Path(entry["model"]), ServingOptions(**entry["way"]), Path(room))
        print(json.dumps(asdict(found)), flush=True)
