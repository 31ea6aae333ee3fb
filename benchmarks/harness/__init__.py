"""What every benchmark shares: a job, fresh processes, alternating rounds, measuring, summaries."""
