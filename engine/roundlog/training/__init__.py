"""Whole trainings: jobs, runs, the trainer, the auditor, and verdicts on claims."""
