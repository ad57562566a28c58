"""State of a step in objects of Python's: what code keeps in attributes, closures, caches and generators, and counts.

README.md says what each file does. The rest of capture imports from here, and none of the files."""

from roundlog.capture.python_state.containers import MISSING, Change, Location
from roundlog.capture.python_state.counters import Counter, Path
from roundlog.capture.python_state.first_step import AfterOne, grown_apart, unsteady
from roundlog.capture.python_state.followed_places import (
    Carried,
    Histories,
    MoreStateError,
    SharedMemory,
    carried,
    shared,
)
from roundlog.capture.python_state.later_steps import LaterSteps
from roundlog.capture.python_state.replaced_builtins import (
    REPLACED,
    UnseenText,
    followed,
    followed_by_name,
    load_compiler,
    types_as_in_training,
    with_logged,
)
from roundlog.capture.python_state.snapshot import Snapshot, snapshot_of

__all__ = [
    "MISSING",
    "REPLACED",
    "AfterOne",
    "Carried",
    "Change",
    "Counter",
    "Histories",
    "LaterSteps",
    "Location",
    "MoreStateError",
    "Path",
    "SharedMemory",
    "Snapshot",
    "UnseenText",
    "carried",
    "followed",
    "followed_by_name",
    "grown_apart",
    "load_compiler",
    "shared",
    "snapshot_of",
    "types_as_in_training",
    "unsteady",
    "with_logged",
]
