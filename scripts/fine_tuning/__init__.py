"""A fine-tune of a real language model: the script that becomes a job, and the measurement of it."""
