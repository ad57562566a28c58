"""The tables and figures of OVT, measured again: what `scripts/paper_tables.py` is made of."""
