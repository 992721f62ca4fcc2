"""Text, and tables of text: plain files, CSV, and JSON, by line or as one value."""
