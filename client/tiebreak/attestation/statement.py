"""Statements of in-toto, version 1, whose predicate is a receipt and whose subject are files: those of a model, as
OpenSSF model signing digests them, or those of a job (docs/receipt.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from roundlog.generation.folder_files import file_sha256
from roundlog.training import JOB_FILES

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
MODEL_SIGNING_TYPE = "https://model_signing/signature/v1.0"
"""Type of the predicates of package `model-signing`, which lists a model's files."""
TRAINING_TYPE, TEXT_TYPE, EVALUATION_TYPE = (f"urn:tiebreak:{kind}:v1" for kind in ("training", "text", "evaluation"))
PREDICATE_TYPES = {
    "tiebreak receipt": TRAINING_TYPE,
    "tiebreak generation": TEXT_TYPE,
    "tiebreak evaluation": EVALUATION_TYPE,
}
"""Types of predicates that are receipts, by the receipt's format."""

FINAL_STATE = "final state"
_STATE_ROOT = "tiebreakStateRoot"  # no SHA-256 of a file, and of a name of its own so that nobody takes it for one
_JOB_FILES = tuple(sorted(JOB_FILES))
_UNSIGNED = (".git", ".gitattributes", ".github", ".gitignore")
"""What package `model-signing` leaves out of a model's folder."""


class StatementError(ValueError):
    """Raised for files that no statement can be about. The message is one sentence with a remedy."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A stranger's statement. Its receipt is not read yet."""

    receipt: dict[str, Any]
    digests: Mapping[str, Mapping[str, str]]
    """Digests of its subject, by their names."""
    lists_files: bool
    """Whether it lists the files of a model, which is its subject, as package `model-signing` does."""

    def check_model(self) -> None:
        """Raise ValueError, with a clause, if it is not about one model."""
        [found] = self.digests.values() if len(self.digests) == 1 else [{}]
        if not re.fullmatch("[0-9a-f]{64}", str(found.get("sha256"))):
            raise ValueError("has a subject that is not the SHA-256 of one model")

    def check_job(self, run_id: bytes, final_state_root: bytes) -> None:
        """Raise ValueError, with a clause, if it is not about the job and the final state of a run."""
        follows = {"spec.json": {"sha256": run_id.hex()}, FINAL_STATE: {_STATE_ROOT: final_state_root.hex()}}
        if any(self.digests.get(name) != digest for name, digest in follows.items()):
            raise ValueError("has another subject than its receipt")

    def other_file(self, own: Path, model: Path | None, job: Path | None) -> str | None:
        """Compare the subject's digests with a model's folder, or with a job's, whichever the statement is about.
        Return the first difference as a clause; None if there is none, or that folder is not given. own: the
        statement's own file. Raises StatementError, OSError."""
        if FINAL_STATE in self.digests:
            names = sorted(self.digests.keys() & {*_JOB_FILES}) if job is not None else []
            for path in [Path(str(job), name) for name in names]:  # a job may have been fetched without its data
                if path.is_file() and self.digests[path.name].get("sha256") != file_sha256(path).hex():
                    return f"{path} has another SHA-256 than in its subject"
            return None
        if model is None:
            return None
        [claimed] = (one["sha256"] for one in self.digests.values())
        found = model_digest(model_files(model, own))
        said = f"the files in {model} have the digest {found}, and its subject is {claimed}"
        return None if found == claimed else f"{said}: a file was added, taken away or changed"


def model_files(model: Path, own: Path) -> dict[str, str]:
    """Return SHA-256 of each file of a model's folder, or of the one file that it is, by path, in the order of paths,
    as package `model-signing` 1.1 lists them. own: the statement's own file, which is left out. Raises OSError, and
    StatementError for a link, a socket or a device."""
    found = {}
    for path in (model, *model.rglob("*")):
        name = path.relative_to(model)
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise StatementError(f"{path} is a link, or no file, and a model's digest is of files: copy the file.")
        is_left_out = path.resolve() == own.resolve() or any(name.is_relative_to(one) for one in _UNSIGNED)
        if path.is_file() and not is_left_out:
            found[PurePosixPath(name)] = file_sha256(path).hex()
    return {str(name): found[name] for name in sorted(found)}


def model_digest(files: Mapping[str, str]) -> str:
    """Return SHA-256 over the SHA-256 of a model's files, 32 bytes each, in the order of their paths."""
    return sha256(b"".join(map(bytes.fromhex, files.values()))).hexdigest()


def statement_on_model(receipt: dict[str, Any], model: Path, own: Path, *, lists_files: bool) -> dict[str, Any]:
    """Return the statement about a model in a folder, or a file. own: the file that it will be in. lists_files: as
    package `model-signing` reads it. Raises StatementError, OSError."""
    files = model_files(model, own)
    subject = [{"name": model.resolve().name, "digest": {"sha256": model_digest(files)}}]
    if not lists_files:
        return _statement(subject, PREDICATE_TYPES[receipt["format"]], receipt)
    ignored = [*_UNSIGNED, *([own.name] if own.resolve().parent == model.resolve() else [])]
    how = {"method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": ignored}
    resources = [{"name": name, "algorithm": "sha256", "digest": digest} for name, digest in files.items()]
    return _statement(subject, MODEL_SIGNING_TYPE, {"serialization": how, "resources": resources, "receipt": receipt})


def statement_on_job(receipt: dict[str, Any], job: Path) -> dict[str, Any]:
    """Return the statement about a job's files and a run's final state. Raises OSError."""
    there = [name for name in _JOB_FILES if (job / name).is_file()]  # it may be fetched without its data
    subject = [{"name": name, "digest": {"sha256": file_sha256(job / name).hex()}} for name in there]
    subject.append({"name": FINAL_STATE, "digest": {_STATE_ROOT: receipt["final_state_root"][2:]}})
    return _statement(subject, TRAINING_TYPE, receipt)


def _statement(subject: list[dict[str, Any]], kind: str, predicate: dict[str, Any]) -> dict[str, Any]:
    return {"_type": STATEMENT_TYPE, "subject": subject, "predicateType": kind, "predicate": predicate}


def parse_statement(plain: dict[str, Any]) -> Statement:
    """Return a stranger's statement. Fields beside ours are passed over, as in-toto asks. Raises ValueError, with words
    that go on a sentence that names the file."""
    if plain.get("_type") != STATEMENT_TYPE:
        raise ValueError(f"has a _type that is not {STATEMENT_TYPE}")
    kind, predicate = plain.get("predicateType"), plain.get("predicate")
    lists_files = kind == MODEL_SIGNING_TYPE
    try:
        receipt: Any = predicate["receipt"] if lists_files else predicate  # type: ignore[index]
        digests = {one["name"]: dict(one["digest"]) for one in plain["subject"]}
        right_kind = kind in (PREDICATE_TYPES.get(receipt["format"]), MODEL_SIGNING_TYPE)
        resources = {one["name"]: one["digest"] for one in predicate["resources"]} if lists_files else {}  # type: ignore[index]
        follows = not lists_files or [{"sha256": model_digest(resources)}] == [*digests.values()]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"lacks a field of a statement, or has one of another kind ({ascii(error)[:60]})") from None
    if len(digests) != len(plain["subject"]):
        raise ValueError("has a subject that stands twice")
    if not right_kind:
        raise ValueError(f"has a predicateType that is neither its receipt's ({', '.join(PREDICATE_TYPES.values())})")
    if not follows:
        raise ValueError("has another subject than the files that it lists")
    return Statement(receipt, digests, lists_files)
