"""``torchpipe audit`` over the same pipelines under different loaders: ``python -m benchmarks.audit``."""
