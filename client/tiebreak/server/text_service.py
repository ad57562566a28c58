"""Texts for those who ask over HTTP: a line in which they wait, a batch that generates, and a receipt for each answer,
which is on the disk before the answer's end is given. The folder of receipts survives a kill: it has each by its
digest, and, by the name of the answer, which receipts are its own."""

from __future__ import annotations

import asyncio
import copy
import re
import time
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from roundlog.capture import CaptureError
from roundlog.capture.huggingface import Sampling
from roundlog.generation import (
    BatchGenerator,
    Choice,
    FolderError,
    Generation,
    GenerationReceipt,
    Generator,
    LoadedModel,
    TextRequest,
    make_receipt,
)
from roundlog.json_text import canonical_json, parse_json
from roundlog.storage import replace_file

from tiebreak.generated_text import StopTexts
from tiebreak.server.completion_bodies import AnswerWriter, StreamWriter, answer_text, fingerprint_of
from tiebreak.server.completion_requests import CompletionRequest, RequestError, tokens_of_prompt
from tiebreak.transactions.keys import sign_text

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount

_RETRY_SECONDS = 5
_DIGEST = re.compile("(?:0x)?([0-9a-f]{64})")
_ANSWER = re.compile("(?:chat)?cmpl-[0-9a-f]{32}")


class IssuedReceipts:
    """A folder with receipts. Nothing of them is kept in memory."""

    def __init__(self, folder: Path, signer: LocalAccount | None = None) -> None:
        """Make the folder, if it is not there. signer: account that signs each receipt. Raises OSError."""
        self._receipts, self._answers = folder / "receipts", folder / "answers"
        for one in (self._receipts, self._answers):
            one.mkdir(parents=True, exist_ok=True)
        self.signer = signer

    def issue(self, answer: str, receipts: Sequence[GenerationReceipt]) -> list[bytes]:
        """Write the receipts of an answer's texts, signed if there is a signer, and return their digests. They are on
        the disk when this returns. receipts: unsigned, with the hashes of request and response. Raises OSError."""
        digests = list[bytes]()
        for receipt in receipts:
            if self.signer is not None:
                address = bytes.fromhex(self.signer.address[2:])
                named = receipt.by(address)
                receipt = named.signed(address, sign_text(self.signer, named.signed_text()))
            digests.append(receipt.digest)
            with replace_file(self._receipts / f"{receipt.digest.hex()}.json") as file:
                file.write(receipt.to_json().encode())
        # The receipts are there first: a name is never told of one that is not.
        named_by = {"receipts": [digest.hex() for digest in digests]}
        with replace_file(self._answers / f"{answer}.json") as file:
            file.write(canonical_json(named_by).encode())
        return digests

    def receipt(self, name: str, index: int = 0) -> bytes | None:
        """Return canonical JSON of a receipt, by its digest (64 hex digits, 0x before them or not), or by its answer's
        name and the place of its text there; None if there is none."""
        found = _DIGEST.fullmatch(name)
        answer = None if found else self._answer(name)
        listed = [found[1]] if found else answer["receipts"] if answer else []
        digest = listed[index] if 0 <= index < len(listed) else None
        return _read(self._receipts / f"{digest}.json") if digest is not None else None

    def _answer(self, name: str) -> dict[str, Any] | None:
        data = _read(self._answers / f"{name}.json") if _ANSWER.fullmatch(name) else None
        return None if data is None else parse_json(data)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


@dataclass(slots=True, kw_only=True)
class PendingText:
    """A text that is being made."""

    prompt: int
    """Number of its prompt in the request."""
    asked: TextRequest
    choices: list[Choice] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """The mean of its tokens' log-probabilities."""
        return sum(choice.logprob for choice in self.choices) / max(1, len(self.choices))


@dataclass(slots=True, kw_only=True)
class PendingAnswer:
    """An answer that is being made."""

    request: CompletionRequest
    request_sha256: bytes
    texts: list[PendingText]
    """By prompt, those that are tried behind it."""
    writer: AnswerWriter

    @property
    def given(self) -> list[PendingText]:
        """The texts to be given, in order, once all have ended: by prompt, the likeliest first if more were tried."""
        request, found = self.request, list[PendingText]()
        for at in range(0, len(self.texts), request.tried):
            some = self.texts[at : at + request.tried]
            if request.tried > request.count:
                some = sorted(some, key=lambda one: -one.mean)[: request.count]
            found += some
        return found

    @property
    def usage(self) -> dict[str, int]:
        """Numbers of tokens, as bodies have them: each prompt's once, and all that were written."""
        prompt = sum(len(one.asked.prompt) for one in self.texts[:: self.request.tried])
        new = sum(len(one.choices) for one in self.texts)
        return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


class TextChangedError(Exception):
    """The end of a text changes what was sent of it."""


class TextService:
    """One model that answers."""

    def __init__(
        self,
        loaded: LoadedModel,
        generator: Generator,
        receipts: IssuedReceipts,
        *,
        tiebreak_version: str,
        training_receipt: bytes | None = None,
        rows: int = 8,
        max_waiting: int = 64,
    ) -> None:
        """The generator is the service's own from now on. training_receipt: digest of the receipt of the run that the
        model comes from, 32 bytes, to be named in each receipt. rows: texts at once. max_waiting: requests that wait
        for one of them to end; more are refused."""
        self._loaded, self._generator, self.receipts = loaded, generator, receipts
        self._version, self._training = tiebreak_version, training_receipt
        self._batch = BatchGenerator(generator, rows)
        self._free = asyncio.Semaphore(rows)
        """Rows of the batch. Those who wait do so here, where one who goes away leaves the line at once."""
        self._answering = 0
        self.most_answers = rows + max_waiting
        # A tokenizer encodes in a thread of its own, and another one decodes here.
        self._encoder = copy.deepcopy(loaded.tokenizer)
        longest = max(len(token.encode(errors="replace")) for token in loaded.tokenizer.get_vocab())
        self._most_bytes = generator.positions * longest
        """Most bytes of a prompt: letters of vocabularies have one byte or more for each of a text."""
        self._encoding = ThreadPoolExecutor(1, "encoder")
        self._writing = ThreadPoolExecutor(1, "receipts")
        self.created = int(time.time())
        self.fingerprint = ""
        """Name of weights, arithmetic and versions, once this is prepared."""

    @property
    def model(self) -> str:
        """Name of the model, as requests give it."""
        return self._loaded.identity.name

    def prepare(self) -> None:
        """Capture the model's programs and try them, which takes its time once. Raises CaptureError, StoppedError,
        MachineError for a model that cannot be served."""
        prompt, how = [self._loaded.stop[0] if self._loaded.stop else 0], Sampling(temperature=1.0)
        asked = TextRequest(prompt, new_tokens=min(2, self._generator.positions - 1), sampling=how)
        self._batch.submit(asked).result()
        self.fingerprint = fingerprint_of(self._receipt(asked))

    def close(self) -> None:
        """Give up all texts, and end the threads."""
        self._batch.close()
        self._encoding.shutdown()
        self._writing.shutdown()

    def enter(self) -> None:
        """Take a place in the line. Raises RequestError if too many wait."""
        if self._answering >= self.most_answers:
            raise RequestError(
                "Too many requests wait already: ask again later.",
                code="overloaded",
                status=503,
                headers={"Retry-After": str(_RETRY_SECONDS)},
            )
        self._answering += 1

    def leave(self) -> None:
        """Give the place in the line back."""
        self._answering -= 1

    async def begin(self, request: CompletionRequest, request_sha256: bytes) -> PendingAnswer:
        """Return the answer to a request, before its first token. Raises RequestError for a prompt that the model
        cannot take."""
        loop = asyncio.get_running_loop()
        self._check_length(request)
        try:
            texts = list[PendingText]()
            for number, prompt in enumerate(request.prompts):
                tokens = await loop.run_in_executor(self._encoding, tokens_of_prompt, self._encoder, prompt)
                room = self._generator.positions - len(tokens)
                wanted = request.max_tokens or max(1, room)
                if wanted > room:
                    way_out = f"ask for at most {room} new ones" if room > 0 else "give a shorter prompt"
                    raise self._too_long(request, f"The prompt's {len(tokens)} tokens and {wanted} new ones", way_out)
                self._generator.require(tokens, wanted, ())
                texts += [PendingText(prompt=number, asked=asked) for asked in self._asked(request, tokens, wanted)]
            request.sampling.bias(self._generator.vocabulary)  # of tokens that are in it
        except (CaptureError, FolderError) as error:
            # Prompts alone are to blame: the model was tried by `prepare`.
            raise RequestError(_sentence(error), param=_prompt_name(request)) from None
        writer = AnswerWriter(
            name=f"{'chatcmpl' if request.is_chat else 'cmpl'}-{token_hex(16)}",
            model=self.model,
            created=int(time.time()),
            fingerprint=self.fingerprint,
            is_chat=request.is_chat,
            logprobs=request.logprobs,
            tokenizer=self._loaded.tokenizer,
        )
        return PendingAnswer(request=request, request_sha256=request_sha256, texts=texts, writer=writer)

    async def whole(self, answer: PendingAnswer) -> tuple[bytes, list[bytes]]:
        """Return the body of an answer, and its receipts' digests. Raises StoppedError, MachineError,
        RequestDroppedError, OSError."""

        async def written(text: PendingText) -> None:
            async with aclosing(self._choices(text)) as choices:
                async for _ in choices:
                    pass

        tasks = [asyncio.ensure_future(written(text)) for text in answer.texts]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        tokenizer = self._loaded.tokenizer
        texts = [
            answer_text(tokenizer, answer.request, text.prompt, text.asked.prompt, text.asked.result.result(), index)
            for index, text in enumerate(answer.given)
        ]
        body = answer.writer.body(texts, answer.usage)
        return body, await self._issue(answer, sha256(body).digest())

    async def events(self, answer: PendingAnswer) -> AsyncGenerator[bytes]:
        """Return the events of an answer's stream; the last of them once its receipt is on the disk. Raises as `whole`,
        and TextChangedError."""
        (one,), request, writer, sent = answer.texts, answer.request, answer.writer, sha256()
        stream = StreamWriter(writer, one.asked.prompt, request.stop_texts)

        def counted(event: bytes) -> bytes:
            sent.update(event)
            return event

        if first := writer.first_event():
            yield counted(first)
        async with aclosing(self._choices(one)) as choices:
            async for choice in choices:
                if event := stream.add(choice):
                    yield counted(event)
        reason = one.asked.result.result().finish_reason
        if rest := stream.rest(reason):
            yield counted(rest)
        if stream.is_changed:
            raise TextChangedError("the tokenizer changes text that was sent already")
        last = writer.last_events(reason, answer.usage if request.include_usage else None)
        sent.update(last)
        await self._issue(answer, sent.digest())
        yield last

    def _check_length(self, request: CompletionRequest) -> None:
        """Raise RequestError for a text that no tokens have room for, before time is spent on encoding it."""
        for prompt in request.prompts:
            texts = [prompt] if isinstance(prompt, str) else [one["content"] for one in prompt if isinstance(one, dict)]
            size = sum(len(text.encode()) for text in texts)
            if size > self._most_bytes:
                more = f"The prompt has {size} bytes, and more than {self._most_bytes}"
                raise self._too_long(request, more, "give a shorter prompt")

    def _too_long(self, request: CompletionRequest, more: str, way_out: str) -> RequestError:
        return RequestError(
            f"{more} have no room in the server's --positions {self._generator.positions}: {way_out}, or start it "
            "with more.",
            param=_prompt_name(request),
            code="context_length_exceeded",
        )

    def _asked(self, request: CompletionRequest, prompt: list[int], new_tokens: int) -> list[TextRequest]:
        """Return what the generator is asked for behind a prompt: the texts that are tried."""
        return [
            TextRequest(
                prompt,
                new_tokens=new_tokens,
                sampling=request.sampling,
                stop=self._loaded.stop,
                seed=request.seed_of(number),
                ends=StopTexts(self._loaded.tokenizer, prompt, request.stop_texts),
                likeliest=request.likeliest,
                of_prompt=request.echo and request.logprobs,
            )
            for number in range(request.tried)
        ]

    async def _choices(self, text: PendingText) -> AsyncGenerator[Choice]:
        """Return the tokens of a text, as they are chosen. Whoever stops reading them gives the text up."""
        await self._free.acquire()
        loop, told, asked = asyncio.get_running_loop(), asyncio.Queue[Choice | None](), text.asked

        def tell(choice: Choice) -> None:
            loop.call_soon_threadsafe(told.put_nowait, choice)

        def ended(_: Future[Generation]) -> None:
            with suppress(RuntimeError):  # the loop has ended, and nobody waits
                loop.call_soon_threadsafe(told.put_nowait, None)
                loop.call_soon_threadsafe(self._free.release)

        asked.tell = tell
        # The row is free when the generator says so, which may be later than its reader goes away.
        asked.result.add_done_callback(ended)
        try:
            try:
                self._batch.submit(asked)
            except BaseException:
                asked.result.cancel()
                raise
            while (choice := await told.get()) is not None:
                text.choices.append(choice)
                yield choice
            asked.result.result()  # or its error
        finally:
            asked.dropped.set()

    async def _issue(self, answer: PendingAnswer, response_sha256: bytes) -> list[bytes]:
        request, texts = answer.request, answer.given
        found = [
            replace(
                self._receipt(one.asked, request.stop_texts),
                request_sha256=answer.request_sha256,
                response_sha256=response_sha256,
                choice_index=index if len(texts) > 1 else None,
            )
            for index, one in enumerate(texts)
        ]
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writing, self.receipts.issue, answer.writer.name, found)

    def _receipt(self, asked: TextRequest, stop_texts: Sequence[str] = ()) -> GenerationReceipt:
        return make_receipt(
            self._loaded,
            self._generator,
            list(asked.prompt),
            asked.result.result(),
            sampling=asked.sampling,
            seed=asked.seed,
            max_new_tokens=asked.new_tokens,
            tiebreak_version=self._version,
            training_receipt=self._training,
            stop_texts=stop_texts,
        )


def _prompt_name(request: CompletionRequest) -> str:
    return "messages" if request.is_chat else "prompt"


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())[:400]
    return f"{text[:1].upper()}{text[1:]}."
