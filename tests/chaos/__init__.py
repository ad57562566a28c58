"""Rounds of real roles whose node, disks and lives go wrong."""
