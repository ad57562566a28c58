"""`python -P -m tiebreak`: the command `tiebreak`, for launchers that start a module.

Without -P Python looks for modules in the working directory first, which may be one that a stranger has made."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        sys.exit(
            "Error: `python -m tiebreak` would take modules from the working directory: run `tiebreak` (with torchrun: "
            "`--no-python -- tiebreak ...`), or add -P, or set PYTHONSAFEPATH=1."
        )
    from tiebreak.cli.app import main

    main()
