"""Whole markets: trainers, auditors, customers and liars on a chain."""
