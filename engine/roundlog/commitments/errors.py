"""The one error of this room."""


class CommitmentError(ValueError):
    """A value that has no commitment, or a position that a tree does not have; the message says which and
    why.
    """
