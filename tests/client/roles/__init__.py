"""Roles, and the parts of them."""
