"""torchdata's names: where they are here, and imports of torchdata's own modules."""
