"""Decode and collate into a torch DataLoader, with an exact, resumable position."""

from geodata.loader.api import Loader, build_loader

__all__ = ["Loader", "build_loader"]
