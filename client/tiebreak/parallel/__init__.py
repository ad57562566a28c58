"""Published runs for audits by many workers: jobs and states from content stores."""
