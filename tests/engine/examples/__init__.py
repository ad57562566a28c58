"""The example tasks."""
