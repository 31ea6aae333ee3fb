"""The parts of the demo ``examples/train_digits.py``."""
