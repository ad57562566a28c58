"""From a task to a traced step: PyTorch runs the user's own code, and every operator is written down."""
