"""IoPath's place is taken by fsspec: what its users gave to nodes cannot be used."""

from __future__ import annotations

__all__ = ["check_no_manager"]


def check_no_manager(pathmgr: object, handler: object) -> None:
    """Raises: TypeError if either is given."""
    if pathmgr is not None or handler is not None:
        raise TypeError(
            f"pathmgr={pathmgr!r} and handler={handler!r} are IoPath's, in whose place fsspec is used: register a file "
            "system with fsspec.register_implementation(), or give its options to the ..._by_fsspec form"
        )
