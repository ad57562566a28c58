"""`python -m tiebreak`: the command `tiebreak`, for launchers that start a module (torchrun)."""

from tiebreak.cli.app import main

if __name__ == "__main__":
    main()
