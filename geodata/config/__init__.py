"""The YAML file: one typed model per section, no behaviour beyond reading it.

Paths in the file are relative to the file's folder. `train:` passes through as an opaque mapping
that the trainer validates. An unknown key is refused with the nearest valid name.
"""

from geodata.config.base import Section, parse_size
from geodata.config.loader import ImageSection, LoaderSection, SplitSection, TextSection
from geodata.config.reading import DEFAULT_FILE, load_config, parse_flow, parse_yaml, validate
from geodata.config.tagging import Condition, RegionRule, TaggingSection, TagValues
from geodata.config.whole import CacheSection, GeodataConfig, RedisSection, RegionSection

__all__ = [
    "DEFAULT_FILE",
    "CacheSection",
    "Condition",
    "GeodataConfig",
    "ImageSection",
    "LoaderSection",
    "RedisSection",
    "RegionRule",
    "RegionSection",
    "Section",
    "SplitSection",
    "TagValues",
    "TaggingSection",
    "TextSection",
    "load_config",
    "parse_flow",
    "parse_size",
    "parse_yaml",
    "validate",
]
