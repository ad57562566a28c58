"""Roles: programs that play customer, trainer, auditor or referee unattended. Each is a process that can be killed at
any instant and resumed, because its state is on the chain, in the content store, or in its own directory.

Import from the modules themselves: `customer_role`, `trainer_role`, `auditor_role`, `referee_role`, `job_role` (one
job, and many in one process), `context` (what every role works with), `notices` (messages of a role while it works)."""
