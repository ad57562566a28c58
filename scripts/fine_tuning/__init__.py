"""A fine-tune of a real language model: the script that becomes a job."""
