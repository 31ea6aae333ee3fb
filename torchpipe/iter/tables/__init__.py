"""Reading tables, from any row on: parquet, Arrow, SQL, other libraries' datasets. A file for each node."""

__all__: list[str] = []
