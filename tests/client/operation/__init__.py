"""Metrics, health, alarms and the log file of a role."""
