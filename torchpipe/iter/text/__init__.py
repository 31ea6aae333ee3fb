"""Reading text files record by record, from any position in them."""

__all__: list[str] = []
