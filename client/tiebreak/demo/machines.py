"""Hardware profiles: one CPU is several machines, depending on which of its instructions the libraries may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tiebreak.child_environment import environment_of_others

_DECIDED_HERE = (
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "OPENBLAS_CORETYPE",
    "ONEDNN_MAX_CPU_ISA",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
)


@dataclass(frozen=True, slots=True)
class Machine:
    """A profile: the environment variables that the kernels' libraries read when a process starts."""

    name: str
    description: str
    variables: Mapping[str, str]

    def environment(self) -> dict[str, str]:
        """The environment of a process on this machine: this one's, without another profile and our own variables."""
        kept = {name: value for name, value in environment_of_others().items() if name not in _DECIDED_HERE}
        # Threads that wait sleep instead of spinning: two processes share few cores here. No influence on any result.
        return kept | {"OMP_WAIT_POLICY": "PASSIVE"} | dict(self.variables)


A = Machine("machine A", "this CPU with all its vector instructions, two threads", {"OMP_NUM_THREADS": "2"})
B = Machine(
    "machine B",
    "no vector instructions beyond the baseline, the oldest code of MKL and OpenBLAS, one thread",
    {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "OPENBLAS_CORETYPE": "Prescott",
        "OMP_NUM_THREADS": "1",
    },
)
