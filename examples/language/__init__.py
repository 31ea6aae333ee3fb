"""A language model of Python's own sources: the data, the model, the training process."""
