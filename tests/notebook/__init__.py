"""Tests that need Jupyter."""
