"""Real steps of a task, watched: what they call, change and compute."""
