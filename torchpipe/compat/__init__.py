"""The private parts of other libraries that torchpipe uses: one file for each library.

A name that begins with an underscore may go with any release: tests/test_private_names.py keeps such names here.
"""

__all__: list[str] = []  # import its modules
