"""Reading text files record by record, from any place in them. A file for each node."""

__all__: list[str] = []
