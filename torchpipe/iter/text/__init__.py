"""Reading text files record by record, from any place in them."""

__all__: list[str] = []
