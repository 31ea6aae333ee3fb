"""Figures of a loader for people: pictures, pages, live tables. They draw from ``LoaderStats`` and nothing else."""

__all__ = []
