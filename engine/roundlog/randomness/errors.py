"""The one error of this room."""


class RandomnessError(ValueError):
    """A seed, step, stream, index or count outside the range that the key or the shuffle has room for."""
