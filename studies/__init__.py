"""Small models, trained by several methods and compared; `python -m studies` lists them."""
