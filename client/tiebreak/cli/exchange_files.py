"""Files with the bytes of a server's request and response, which `tiebreak verify` holds against a text's receipt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tiebreak.cli import output
from tiebreak.cli.failures import CommandError

if TYPE_CHECKING:
    from roundlog.generation import Choice, GenerationReceipt, LoadedModel


@dataclass(slots=True)
class ExchangeFiles:
    """A request and its response; each is perhaps not there."""

    request: Path | None
    response: Path | None
    wrong: list[str] = field(default_factory=list)
    """Differences that were found, a clause for each."""
    compared: list[str] = field(default_factory=list)
    """Names of the bodies that were compared."""

    def compare(
        self, file: Path, receipt: GenerationReceipt, loaded: LoadedModel, choices: Sequence[Choice] | None
    ) -> None:
        """Compares the bodies with the receipt in a file. choices: its tokens as a repetition gives them, if they are
        right. Raises CommandError for files that cannot be read, and for a receipt of no server's answer."""
        if self.request is self.response is None:
            return
        try:
            from tiebreak.server.completion_requests import MAX_REQUEST_BYTES
            from tiebreak.server.exchange_check import MAX_RESPONSE_BYTES, wrong_request, wrong_response
        except ModuleNotFoundError as error:
            raise CommandError(f"comparing bodies needs {error.name}: pip install 'tiebreak[serve]'.") from error
        request = _bytes(self.request, MAX_REQUEST_BYTES)
        response = _bytes(self.response, MAX_RESPONSE_BYTES)
        for name, data in (("request", request), ("response", response)):
            if data is not None and getattr(receipt, f"{name}_sha256") is None:
                raise CommandError(f"{file} has no {name}_sha256, as the receipt of a server's answer: leave --{name}.")
        if request is not None:
            self.compared.append("request")
            self.wrong += wrong_request(receipt, loaded, request)
        if response is not None:
            self.compared.append("response")
            self.wrong += wrong_response(receipt, loaded, response, request=request, choices=choices)

    def plain(self) -> dict[str, object]:
        """The findings for programs."""
        return {"compared": self.compared, "wrong_bodies": self.wrong}

    def show(self, file: Path, receipt: GenerationReceipt) -> None:
        """Prints the findings for people, and which bodies were not compared."""
        for clause in self.wrong:
            output.show_line(f"WRONG: {clause}.")
        if self.compared and not self.wrong:
            has = "have" if len(self.compared) == 2 else "has"
            output.show_line(
                f"Right: {' and '.join(self.compared)} {has} the bytes that {file} names, and the content that it "
                "follows from or leads to."
            )
        given = [receipt.request_sha256, receipt.response_sha256]
        names = [name for name, data in zip(("request", "response"), given, strict=True) if data is not None]
        if missing := [name for name in names if name not in self.compared]:
            were = "were" if len(missing) == 2 else "was"
            options = " and ".join(f"--{name}" for name in missing)
            output.show_line(
                f"{' and '.join(missing).capitalize()} {were} not compared, and may say something else: give {options}."
            )


def _bytes(path: Path | None, most: int) -> bytes | None:
    """The bytes of a file. Raises CommandError."""
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise CommandError(
            f"{path} cannot be read ({error.strerror}): name a file with the bytes of a body."
        ) from error
    if len(data) > most:
        raise CommandError(f"{path} has more than {most} bytes: no body of this server has.")
    return data
