"""Accounts that every development chain funds."""

MNEMONIC = "test test test test test test test test test test test junk"
"""The mnemonic of every public test chain: anvil's and hardhat's accounts are the same ones."""

ACCOUNTS = 10
BALANCE = 10_000 * 10**18
"""Wei that each account starts with."""
