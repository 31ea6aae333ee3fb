"""Each part of the multi-process runtime by itself: what it promises to the parts around it."""
