"""Texts become rows of tokens and labels: their window, an end mark, padding."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from geodata.loader.text import ALIGN, IGNORED, ByteTokenizer, sequences

TEXTS = st.lists(st.one_of(st.none(), st.text("aé", max_size=90)), max_size=8)


@settings(deadline=None)
@given(texts=TEXTS, length=st.integers(1, 100), draws=st.lists(st.integers(0, 2**62), min_size=8))
def test_each_row_is_the_window_of_its_text(texts, length, draws):
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(pa.array(texts, pa.string()))
    for starts in (None, np.array(draws[: len(texts)], np.int64)):
        tokens, labels = (part.tolist() for part in sequences(ids, tokenizer, length, starts))
        for row, text in enumerate(texts):
            whole = [*(text or "").encode(), *([tokenizer.eos_id] if text else [])]
            room = max(len(whole) - length, 0)
            first = draws[row] % (room + 1) if starts is not None else 0
            seen = whole[first : first + length]
            width = len(tokens[row])
            assert width == length or (width % ALIGN == 0 and width < length)
            assert tokens[row] == seen + [tokenizer.eos_id] * (width - len(seen))
            assert labels[row] == seen + [IGNORED] * (width - len(seen))
