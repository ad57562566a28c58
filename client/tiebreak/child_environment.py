"""Environment variables of this process, as far as programs that are not ours may have them."""

from __future__ import annotations

import os


def environment_of_others() -> dict[str, str]:
    """The variables of this process without Tiebreak's own. Some of them hold keys and passwords, others URLs of nodes,
    signers and services, which often have an access token in them; no other program needs any."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TIEBREAK_")}
