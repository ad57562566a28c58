"""Audits by many workers."""
