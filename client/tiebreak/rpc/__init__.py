"""Nodes of a chain: transports, one node or several that have to agree, a user's Web3, typed answers, errors.

Nothing is imported here, so that a command loads only what it uses.
"""
