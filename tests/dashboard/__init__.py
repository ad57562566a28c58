"""The local web page about jobs and games."""
