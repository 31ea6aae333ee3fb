"""The parts of the example ``examples/train_images.py``."""
