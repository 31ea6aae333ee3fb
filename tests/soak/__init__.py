"""Processes killed at random for a long time, against the in-process oracle: ``make soak``."""
