"""Forms of arrays that nobody thinks of, for every public function: right, or refused by name.

`form.py` says what a form is and what holds for it, `of_numpy.py`, `of_torch.py` and `of_jax.py`
list those of each framework, and `test_zoo.py` tries them on the table of `calls`. A new public
function meets all of them by its row in that table, and a new form all functions by its own here.
"""
