"""The 3-gram baseline is a proper distribution, and learns what is there to learn."""

import numpy as np

from benchmarks.language import VOCABULARY, TriGram


def test_probabilities_sum_to_one_seen_or_unseen():
    model = TriGram()
    rng = np.random.default_rng(0)
    model.count(rng.integers(97, 100, 500))
    model.fit(0.7)
    for context in ([97, 98], [0, 0], [97, 5]):
        total = sum(
            2 ** -(model.bits(np.array([*context, c])) - model.bits(np.array(context)))
            for c in range(VOCABULARY)
        )
        assert abs(total - 1) < 1e-9


def test_a_repeated_text_costs_almost_nothing_and_noise_costs_its_entropy():
    model = TriGram()
    text = np.array([97, 98, 99, 100] * 500)
    model.count(text)
    model.fit(0.5)
    assert model.bits(text) / len(text) < 0.02
    noise = TriGram()
    rng = np.random.default_rng(1)
    noise.count(rng.integers(0, 16, 100_000))
    noise.fit(0.5)
    fresh = rng.integers(0, 16, 10_000)
    assert abs(noise.bits(fresh) / len(fresh) - 4) < 0.05
