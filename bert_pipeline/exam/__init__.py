"""The exam: minimal pairs made from held-out text, and the n-gram model that is their floor."""
