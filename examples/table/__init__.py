"""The parts of ``examples/train_table.py``."""
