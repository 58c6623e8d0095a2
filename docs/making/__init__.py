"""The reference pages, made from code and schemas, and how the site is put together.

`python -m docs.making` writes every made page anew. What only a person can say stands in `notes`,
under the headings of the pages that it belongs to. Nothing here decides anything: a page shows what
the code has, and what has no sentence of meaning is refused instead of shown.
"""
