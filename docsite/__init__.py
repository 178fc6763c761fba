"""The site of the documentation: pages that are generated, files of the repository within it, and its links.

`python -m docsite` writes the generated pages of docs/; `hooks` is what mkdocs calls; `links` looks after a built site.
"""
