"""Small tokenizer files."""

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

WORDS = "[PAD] [CLS] the sea is blue and wide".split()


def write_tokenizer(path, unknown=None):
    """Write a tokenizer of words; without `unknown` it fails at a word that it does not know."""
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    if unknown is not None:
        vocabulary[unknown] = len(vocabulary)
    made = Tokenizer(WordLevel(vocabulary, unk_token=unknown or "[UNK]"))
    made.pre_tokenizer = Whitespace()
    made.enable_padding(pad_id=0, pad_token="[PAD]", length=12)
    made.enable_truncation(4)
    made.save(str(path))
    return str(path)
