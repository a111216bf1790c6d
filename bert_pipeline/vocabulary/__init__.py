"""The WordPiece vocabulary and the tokenizer that uses it."""
