"""Evaluations of language models by `lm-eval`: receipts of their scores, which anybody can derive again."""
