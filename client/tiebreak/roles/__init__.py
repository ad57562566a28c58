"""Roles: programs that play customer, trainer, auditor or referee unattended. Each is a process that can be killed at
any instant and resumed, because its state is on the chain, in the content store, or in its own directory.

Import from the modules themselves: `customer`, `trainer`, `auditor`, `referee`, `follower` (many jobs in one process),
`context` (the surroundings of every role), `notices` (messages of a role while it works).
"""
