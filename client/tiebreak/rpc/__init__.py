"""Nodes of a chain: transports, one node or several that have to agree, typed answers, errors.

Nothing is imported here, so that a command loads only what it uses.
"""
