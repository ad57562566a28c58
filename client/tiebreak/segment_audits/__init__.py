"""Published runs for audits by segments: jobs and states from content stores."""
