"""Property tests of the laws, by their names: ``pytest tests/laws -k L4``.

What a user may rely on, and where it is shown.
"""
