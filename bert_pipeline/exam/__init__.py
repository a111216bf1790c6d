"""The exam: minimal pairs made from held-out text, and the trigram model that is their baseline."""
