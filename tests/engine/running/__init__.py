"""Trainings and audits: runs, policies, devices, deaths."""
