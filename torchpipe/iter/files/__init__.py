"""Opening, reading and writing files, text in them, archives of them."""

__all__: list[str] = []
