"""Tests of `engine/roundlog`, and the tasks and trainings that they share."""
