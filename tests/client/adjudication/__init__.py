"""Operators in the contract, held against the reference and the engine."""
