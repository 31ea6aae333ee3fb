"""What a loader's figures say, for people and for tools. Reads ``torchpipe.stats`` and nothing else.

``advice`` and ``outlook`` draw conclusions, ``views`` draws pictures, pages and live tables, ``export`` feeds other
tools. ``cli``, the command line, stands above all: it also makes loaders, and reads states.
"""

__all__ = []
