"""Every kind of model that `transformers` knows, in a small configuration, tried as a task."""
