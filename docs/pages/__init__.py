"""What of the site is made from the code, one file for each kind of page; ``docs/mkdocs_hooks.py`` calls them.

A page is text by its place in the site, so that nothing generated is stored and nothing can be out of date.
"""
