"""Files that lie elsewhere: object stores, web servers, hubs. A file for each node."""

__all__: list[str] = []
