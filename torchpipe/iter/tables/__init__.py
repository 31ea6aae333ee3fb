"""Reading tables, from any row on: parquet, Arrow, SQL, other libraries' datasets."""

__all__: list[str] = []
