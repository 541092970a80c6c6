"""`kofn bench`: time the maps, softmax and other libraries."""
