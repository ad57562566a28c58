"""The chain: nodes, accounts, transactions, and the verification game behind typed methods.

Import from the modules themselves: `node` (connect, ChainNode), `devnet` (start_devnet), `accounts`, `sender` (Sender),
`game` (VerificationGame), `records`, `events`, `spec`, `errors`. Nothing is imported here, so that a command loads
only what it uses.
"""
