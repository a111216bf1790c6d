"""MediaWiki exports: dump files to pages, and the wikitext of a page to its passages of prose."""
