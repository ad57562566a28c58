"""One CPU as several machines, the tasks that they are given, and the process that is one of them."""
