"""Errors as a person sees them: one sentence that says what to do, and an exit code; no traceback.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done, and the answer is "no" (an audit that disagrees, a demo story that
ended as it should not), 130 interrupted.
"""

from __future__ import annotations

import errno
from typing import Any

import typer
from typer.core import TyperGroup

FAILED = 1
WRONG_USAGE = 2
ANSWER_IS_NO = 3

_OUR_PACKAGES = frozenset(["roundlog", "tiebreak"])

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


class OneSentenceErrors(TyperGroup):
    """The root command, which turns an error of any command into a sentence on standard error."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command. With --debug, errors pass as they are."""
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, EOFError):
            _say("stopped before the end; run the same command again to carry on.")
            raise typer.Exit(130) from None
        except Exception as error:
            if ctx.params.get("debug") or _is_typers_own(error):
                raise
            _say(sentence(error))
            raise typer.Exit(error.code if isinstance(error, CommandError) else FAILED) from None


def sentence(error: Exception) -> str:
    """An error as one sentence, on one line, without control characters."""
    from tiebreak.chain.errors import printable

    if _is_disk_full(error) or _is_disk_full(error.__cause__):
        text = "the disk is full: make room and run the same command again"
    elif type(error).__module__.partition(".")[0] in _OUR_PACKAGES:
        remedy = _REMEDIES.get(type(error).__name__)
        text = f"{error}; {remedy}" if remedy is not None else str(error)
    elif isinstance(error, OSError):
        text = _of_system(error)
    elif isinstance(error, MemoryError):
        text = "there is not enough memory: close other programs or take a smaller job"
    else:
        text = (
            f"something went wrong that should not ({type(error).__name__}: {error}): "
            "run the command again as `tiebreak --debug ...` and report what it prints"
        )
    text = printable(text)
    return text if text.endswith((".", "?", "!")) else text + "."


def _of_system(error: OSError) -> str:
    reason = error.strerror or str(error)
    if error.filename is None:
        return f"the system refused ({reason}): check your files and connections"
    return f"{error.filename} cannot be used ({reason}): check the path"


def _is_disk_full(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno == errno.ENOSPC


def _is_typers_own(error: Exception) -> bool:
    """Exit, Abort and usage errors, which typer shows itself; and a closed pipe, at which it ends quietly."""
    return type(error).__module__.partition(".")[0] == "typer" or isinstance(error, BrokenPipeError)


def _say(text: str) -> None:
    from tiebreak.cli.output import errors

    errors().print(f"[bold red]Error:[/] {escaped(text)}", soft_wrap=True, highlight=False)


def escaped(text: str) -> str:
    """A text in which rich sees no markup."""
    from rich.markup import escape

    return escape(text)
