"""Errors as a person sees them: one sentence that says what to do, and an exit code; no traceback. With --json they are
an object on one line of standard error, with a code for programs.
"""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

FAILED = 1
WRONG_USAGE = 2
ANSWER_IS_NO = 3
INTERRUPTED = 130

EXIT_CODES = {
    0: "done",
    FAILED: "failed; standard error says why, in one sentence",
    WRONG_USAGE: "wrong usage: an option that does not exist, a value that is none, options that contradict each other",
    ANSWER_IS_NO: 'done, and the answer is "no": an audit that disagrees, a receipt that is wrong, a demo story that '
    "ended as it should not, a machine that `doctor` finds wrong, a task that no job can be made of",
    INTERRUPTED: "stopped before the end, by Ctrl-C or a signal; the same command carries on",
}
"""Exit codes of all commands, and what they mean."""

_ERRORS = {
    "usage": ("the command line is wrong (exit code 2)", "WrongUsage"),
    "interrupted": ("stopped before the end (exit code 130)",),
    "command": ("something in the command, its files or the chain's state that the user can put right", "CommandError"),
    "account": ("no key, a wrong password, or a key file that cannot be used", "AccountError"),
    "signer": ("the external signer does not answer, refuses, or signs something else", "SignerError"),
    "insufficient-funds": ("the account cannot pay for the transaction", "InsufficientFunds"),
    "chain-unavailable": ("the node does not answer", "ChainUnavailable"),
    "chain": ("the node answers nonsense, or refuses", "ChainError"),
    "contract": ("the contract refuses the call, or is not this version's", "ContractError", "DeploymentError"),
    "devnet": ("the development chain cannot be started or changed", "DevnetError"),
    "store": ("the content store does not answer, or has not what is asked for", "StoreError"),
    "capture": ("a task does what cannot be captured", "CaptureError"),
    "machine": ("this machine does not compute as it has to", "MachineError"),
    "job": ("a job's files are damaged, or it is none that this version follows", "JobError"),
    "log": ("a rounding log is damaged", "LogError"),
    "storage": ("a file of a run is damaged", "StorageError"),
    "ranks": (
        "another rank is lost or differs, or the launcher's environment is wrong",
        *("DisagreementError", "LaunchError", "LostRankError", "RankMismatchError"),
    ),
    "disk-full": ("there is no room on the disk", "NoSpace"),
    "system": ("the system refuses a file or a connection",),
    "memory": ("there is not enough memory",),
    "refused": ("anything else that the program refuses with a sentence",),
    "internal": ("a defect of this program", "DefectError"),
}
"""Code of an error under --json -> its meaning, and names of the classes of errors that have it, with all that descend
from them and have no code of their own."""

ERROR_CODES = {code: meaning for code, (meaning, *_) in _ERRORS.items()}
"""Codes of errors under --json; a code never changes its meaning."""

_CODES = {name: code for code, (_, *names) in _ERRORS.items() for name in names}

_OUR_PACKAGES = frozenset(["roundlog", "tiebreak", "tiebreak_demo"])

_REMEDIES = {
    "JobError": "copy the job again, or make it again with `tiebreak job create`",
    "LogError": "copy the log again, or run `tiebreak train` in its run's directory, which mends it",
    "StorageError": "check that file and its disk, and run the same command again",
}
"""Remedies of errors that only say which file is damaged, by the names of their classes: importing those takes
longer than most commands. Their subclasses say themselves what helps."""


class CommandError(Exception):
    """Something that the user can put right; the message is one sentence that says how."""

    code = FAILED


class WrongUsage(CommandError):
    """A command line that contradicts itself; exit code 2."""

    code = WRONG_USAGE


@contextmanager
def extra(name: str, needs: str) -> Iterator[None]:
    """Make a block that imports libraries of an extra. needs: who needs them, with the verb. Raises CommandError."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise CommandError(f"{needs} {error.name}: pip install 'tiebreak[{name}]'.") from error


class OneSentenceErrors(TyperGroup):
    """The root command, which turns an error of any command into a sentence on standard error."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, as `--help` lists them."""
        return sorted(self.commands)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options of every command, and remember whether the command will be asked for JSON."""
        ctx.meta[_AS_JSON] = "--json" in args[: args.index("--") if "--" in args else None]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def invoke(self, ctx: Any) -> Any:
        """Run the command. With --debug, errors pass as they are."""
        as_json = bool(ctx.meta.get(_AS_JSON))
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, EOFError):
            text = "stopped before the end; run the same command again to carry on."
            _say(text, "interrupted", INTERRUPTED, as_json=as_json)
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            if _is_typers_own(error):
                if not as_json or not hasattr(error, "format_message"):
                    raise
                # Typer shows this in a frame, which is for people.
                _say(_one_line(error.format_message()), "usage", WRONG_USAGE, as_json=True)
                raise typer.Exit(WRONG_USAGE) from None
            exit_code = error.code if isinstance(error, CommandError) else FAILED
            _say(sentence(error), error_code(error), exit_code, as_json=as_json)
            raise typer.Exit(exit_code) from None


_AS_JSON = "tiebreak.cli.as_json"


def error_code(error: Exception) -> str:
    """Return the code of an error: one of `ERROR_CODES`."""
    if any(isinstance(one, OSError) and one.errno == errno.ENOSPC for one in (error, error.__cause__)):
        return "disk-full"
    for kind in type(error).__mro__:
        if kind.__module__.partition(".")[0] in _OUR_PACKAGES and kind.__name__ in _CODES:
            return _CODES[kind.__name__]
    if type(error).__module__.partition(".")[0] in _OUR_PACKAGES:
        return "refused"
    if isinstance(error, OSError):
        return "system"
    return "memory" if isinstance(error, MemoryError) else "internal"


def sentence(error: Exception) -> str:
    """Return an error as one sentence, on one line, without control characters."""
    code = error_code(error)
    if code == "disk-full":
        text = "the disk is full: make room and run the same command again"
    elif type(error).__module__.partition(".")[0] in _OUR_PACKAGES:
        remedy = _REMEDIES.get(type(error).__name__)
        text = f"{error}; {remedy}" if remedy is not None else str(error)
    elif isinstance(error, OSError):
        text = _of_system(error)
    elif isinstance(error, MemoryError):
        text = "there is not enough memory: close other programs or take a smaller job"
    else:
        text = f"a defect of Tiebreak ends this command ({type(error).__name__}: {error})"
    if code == "internal":
        said = text.removesuffix(".")
        text = f"{said}; please run it again as `tiebreak --debug ...` and send what it prints to Tiebreak's authors"
    return _one_line(text)


def _one_line(text: str) -> str:
    from tiebreak.rpc.chain_errors import printable

    text = printable(" ".join(text.split()))
    return text if text.endswith((".", "?", "!")) else text + "."


def _of_system(error: OSError) -> str:
    reason = error.strerror or str(error)
    if error.filename is None:
        return f"the system refused ({reason}): check your files and connections"
    return f"{error.filename} cannot be used ({reason}): check the path"


def _is_typers_own(error: Exception) -> bool:
    """Return whether it is Exit, Abort or a usage error, which typer shows itself, or a closed pipe, at which it ends
    without a word."""
    return type(error).__module__.partition(".")[0] == "typer" or isinstance(error, BrokenPipeError)


def _say(text: str, code: str, exit_code: int, *, as_json: bool) -> None:
    from rich.markup import escape

    from tiebreak.cli.output import errors

    if as_json:
        print(json.dumps({"error": {"code": code, "exit_code": exit_code, "message": text}}), file=sys.stderr)
        return
    errors().print(f"[bold red]Error:[/] {escape(text)}", soft_wrap=True, highlight=False)
