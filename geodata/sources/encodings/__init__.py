"""The encoding of a text: as declared, or recognised with a measure of doubt."""
