"""MediaWiki exports: dump files to pages, and the wikitext of a page to its passages of prose and their sentences.

In the order of the work: bzip2, dump, site; extract, which calls markup, expand with templates, paragraphs and repair;
sentences. The tables of names, templates and marks are in `data` and `templates/data`.
"""
