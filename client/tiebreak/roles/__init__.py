"""Who runs what: customer, trainer, auditor, referee. Each is a process that can be killed at any instant and carry on,
because what it needs is on the chain, in the content store, or in its own directory.

Import from the modules themselves: `customer`, `trainer`, `auditor`, `referee`, `follower` (many jobs in one process),
`context` (what every role is given), `notices` (what a role tells while it works).
"""
