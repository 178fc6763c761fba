"""The documentation site: generated pages, pages for files of the repository, and checks of links.

`python -m docsite` writes the generated pages of docs/; mkdocs calls `hooks`; `links` checks a built site.
"""
