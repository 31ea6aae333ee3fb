"""Every pair of features against the oracle: the same run in process, without any of them."""
