"""Runs torchdata 0.9's own tests, and torch's of its nodes, on torchpipe, and compares statement by statement."""
