"""Tasks to learn from and to try the tools on. Each is a function that returns a `roundlog.capture.Task`."""
