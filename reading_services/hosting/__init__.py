"""What runs inside a place of any kind: shards, the dispatched part, and what of their items can be sent."""

__all__: list[str] = []
