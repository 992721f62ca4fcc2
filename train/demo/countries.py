"""The country that a locale stands for: its own, else where its language is mainly spoken."""

from __future__ import annotations

MAIN_COUNTRY = {
    "af": "ZA", "am": "ET", "ar": "EG", "ast": "ES", "az": "AZ", "be": "BY", "bg": "BG",
    "bn": "BD", "br": "FR", "bs": "BA", "ca": "ES", "ckb": "IQ", "cs": "CZ", "cy": "GB", "da": "DK",
    "de": "DE", "dsb": "DE", "el": "GR", "en": "US", "es": "ES", "et": "EE", "eu": "ES",
    "fa": "IR", "fi": "FI", "fr": "FR", "fy": "NL", "ga": "IE", "gd": "GB", "gl": "ES",
    "he": "IL", "hi": "IN", "hr": "HR", "hsb": "DE", "ht": "HT", "hu": "HU", "hy": "AM",
    "id": "ID", "ig": "NG", "io": None, "is": "IS", "it": "IT", "ja": "JP", "ka": "GE",
    "kab": "DZ", "kk": "KZ", "km": "KH", "kn": "IN", "ko": "KR", "ky": "KG", "lb": "LU",
    "lt": "LT", "lv": "LV", "mk": "MK", "ml": "IN", "mn": "MN", "mr": "IN", "ms": "MY",
    "my": "MM", "nb": "NO", "ne": "NP", "nl": "NL", "nn": "NO", "os": "RU", "pa": "IN",
    "pl": "PL", "pt": "PT", "ro": "RO", "ru": "RU", "sk": "SK", "sl": "SI", "sq": "AL",
    "sr": "RS", "sv": "SE", "sw": "TZ", "ta": "IN", "te": "IN", "tg": "TJ", "th": "TH",
    "tk": "TM", "tr": "TR", "tt": "RU", "udm": "RU", "ug": "CN", "uk": "UA", "ur": "PK",
    "uz": "UZ", "vi": "VN",
}  # fmt: skip

WRITTEN_IN = {"zh_Hans": "CN", "zh_Hant": "TW", "sr_Latn": "RS"}
"""Locales whose second part is a script."""


def country_of(locale: str) -> str | None:
    """Return an ISO 3166-1 code, or None for a language of no country (Esperanto)."""
    if locale in WRITTEN_IN:
        return WRITTEN_IN[locale]
    language, _, country = locale.partition("_")
    return country if len(country) == 2 else MAIN_COUNTRY.get(language)
