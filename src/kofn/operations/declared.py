"""All operations on rows that are declared in this room; the adapters of a framework take these."""

from __future__ import annotations

from kofn.operations.choice import (
    FIRST,
    FIRST_OF_MASKED,
    HARD,
    HARD_WEIGHTS,
    LARGEST,
    RANKED,
    RANKED_OF_MASKED,
)
from kofn.operations.knapsack import FILL, HARD_KNAPSACK, KNAPSACK, KNAPSACK_VALUE, PRICE
from kofn.operations.logarithms import LOG_WEIGHTS
from kofn.operations.losses import LOSS
from kofn.operations.rest import REST
from kofn.operations.topk import SINGLE_WEIGHTS, THETA, VALUE, WEIGHTS
from kofn.operations.truncated import (
    LEAST,
    SPARSE,
    SPARSE_ENTROPY,
    SPARSE_LOSS,
    TRUNCATED,
    TRUNCATED_LOSS,
)

DECLARED = (
    *(WEIGHTS, SINGLE_WEIGHTS, THETA, VALUE, LOG_WEIGHTS, LOSS, TRUNCATED, TRUNCATED_LOSS),
    *(SPARSE, SPARSE_LOSS, SPARSE_ENTROPY, LEAST, REST),
    *(HARD_WEIGHTS, HARD, LARGEST, FIRST, FIRST_OF_MASKED, RANKED, RANKED_OF_MASKED),
    *(KNAPSACK, HARD_KNAPSACK, FILL, PRICE, KNAPSACK_VALUE),
)
