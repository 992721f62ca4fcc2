"""A small raw corpus of posts, and a config for it."""

import json
import random

WORDS = "the sea und der Wald 森 mer ciel ночь день 바다 ola año ø ß naïve".split()
COUNTRIES = ["DE", "FR", "NO", "US", "CA", "JP", "KR", "BR", None]

CONFIG = """
dataset: {name: posts, root: data/posts}
here: eu-central
regions:
  eu-central: {jurisdiction: DE, cache: {nvme: cache/eu-central, size: 64MiB}}
  us-east: {jurisdiction: US, cache: {nvme: cache/us-east, size: 64MiB}}
  ap-northeast: {jurisdiction: JP}
tagging:
  region:
    field: country
    map: {eu-central: [DE, FR, NO], us-east: [US, CA], ap-northeast: [JP, KR]}
  unknown: eu-central
  rules:
    - when: {field: author_email, present: true}
      tag: {data_category: PersonalData, legal_basis: "eu-gdpr:A6-1-f", retention: 2031-08-17}
    - {when: {region: known}, tag: {data_category: NonPersonalData}}
  subject: author_email
loader: {global_batch: 12, seed: 7, split: {heldout: 0.1}, text: {length: 64}}
"""


def make_posts(path, count=300, seed=0):
    """Write posts as JSON lines and return them."""
    rng = random.Random(seed)
    posts = []
    for number in range(count):
        posts.append(
            {
                "text": " ".join(rng.choices(WORDS, k=rng.randint(0, 30))),
                "author_email": f"u{number % 20}@example.org" if number % 5 == 0 else None,
                "country": rng.choice(COUNTRIES),
                "score": rng.random() if number % 3 else None,
                "likes": rng.randint(0, 2**40),
                "tags": rng.choices(WORDS, k=rng.randint(0, 3)),
            }
        )
    lines = [json.dumps(post, ensure_ascii=False) for post in posts]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return posts
