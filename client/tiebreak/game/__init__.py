"""A party's strategy in the verification game: from its own trees to the one move that is due. No chain, no files."""
