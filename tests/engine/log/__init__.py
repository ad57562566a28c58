"""The rounding log: its bytes, its writer, its reader, and attacks on it."""
