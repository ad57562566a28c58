"""Audits by many workers at a time: a run cut at its published states, whose intervals are executed side by side."""
