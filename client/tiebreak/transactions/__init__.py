"""Transactions: keys and signers, fees, the durable journal, and sending each one exactly once."""
