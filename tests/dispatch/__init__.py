"""Dispatching: the dealing itself against a simple model, and graphs with a dispatcher in them."""
