"""What is used of other libraries beyond what they promise: one file for each of them.

A name that begins with an underscore may go with any release: tests/test_private_names.py keeps such names here.
"""

__all__: list[str] = []  # import its modules
