"""Steps that are executed in parts of their batch."""
