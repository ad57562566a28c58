"""The accounts that every development chain funds."""

MNEMONIC = "test test test test test test test test test test test junk"
"""The mnemonic of every public test chain: anvil's and hardhat's accounts are the same ones."""

ACCOUNTS = 10
BALANCE = 10_000 * 10**18
"""What each of them starts with, in wei."""
