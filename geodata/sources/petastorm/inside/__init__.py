"""What an interpreter runs that has petastorm; no part of it needs anything else of geodata."""
