"""The verification game's contract behind typed methods: its records, events, code, and what happens on it."""
