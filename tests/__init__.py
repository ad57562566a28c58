"""Tests of the engine, of the client, of both together, and of the scripts."""
