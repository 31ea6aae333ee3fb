"""What runs inside a worker of any kind: shards, the dispatched part, and what of their items can be sent."""

__all__: list[str] = []
