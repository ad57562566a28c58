"""Whole trainings: jobs, runs, the trainer and the auditor, and what an audit says."""
