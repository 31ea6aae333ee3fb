"""Workers that are Ray actors: shards and the dispatched part run on any node of a Ray cluster."""

__all__: list[str] = []
