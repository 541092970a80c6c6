"""Small models, trained by several methods and compared; `python -m studies` lists them."""

from kofn.commands.needed import end_if_missing

end_if_missing()
