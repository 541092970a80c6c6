"""kofn bench: the maps timed beside softmax and other libraries."""
