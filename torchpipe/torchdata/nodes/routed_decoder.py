"""``routed_decode``: decode files by their ending, with torch's decoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data.datapipes.utils.decoder import Decoder, basichandlers, extension_extract_fn, imagehandler

from torchpipe.iter._shared.bases import Itemwise
from torchpipe.iter._shared.paths import naming_path, pair_of
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_function

__all__ = ["RoutedDecoder"]


@functional_datapipe("routed_decode")
class RoutedDecoder(Itemwise[tuple[str, Any]]):
    """Takes pairs (path, open stream), and yields pairs (path, what the first handler that knows the ending makes of
    it).

    A handler is a function ``(key, bytes)`` that returns None for what it does not know; ``key_fn`` makes the key of
    the path. What none knows comes as bytes. Without handlers: torch's for text, numbers and JSON, and for images as
    tensors (which needs Pillow).

    State: none of its own. Raises: TypeError for a handler that is no function; while iterating, what a handler raises,
    with a note of the path.
    """

    def __init__(
        self,
        datapipe: IterDataPipe[tuple[str, Any]],
        *handlers: Callable[[str, bytes], Any],
        key_fn: Callable[[str], str] = extension_extract_fn,
    ) -> None:
        super().__init__(datapipe)
        for handler in handlers:
            check_function("a handler", handler)
        self.decoder = Decoder(*(handlers or (basichandlers, imagehandler("torch"))), key_fn=key_fn)  # type: ignore[no-untyped-call]

    def add_handler(self, *handler: Callable[[str, bytes], Any]) -> None:
        """Ask these as well, before the others; it changes the node."""
        self.decoder.add_handler(*handler)  # type: ignore[no-untyped-call]

    def change(self, item: Any) -> tuple[str, Any]:
        path, stream = pair_of("routed_decode", item, "(path, open stream)")
        if not isinstance(path, str):
            raise TypeError(f"routed_decode needs paths as text, got {path!r:.200}")
        with naming_path(path, "decoding"):
            return path, self.decoder((path, stream))[path]
