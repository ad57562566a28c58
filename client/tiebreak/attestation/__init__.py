"""Receipts in formats of others: Statements of in-toto about files, in signed envelopes (DSSE) (docs/receipt.md)."""
