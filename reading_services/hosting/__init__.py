"""The inside of a worker of any kind: shards, the dispatched part, and the items that can be sent."""

__all__: list[str] = []
