"""Benchmarks: torchpipe beside other loaders, in one run. Start with ``python benchmarks/run.py --help``."""
