"""Where and how a run was made: interpreter, packages, hardware, code, command."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch


def describe(**facts: Any) -> Mapping[str, Any]:
    """Return the environment as plain JSON, with `facts` of the caller's."""
    return {
        "format_version": 1,
        "command": shlex.join(sys.orig_argv),
        "python": sys.version,
        "platform": platform.platform(),
        "packages": _packages(),
        "torch": {"version": str(torch.__version__), "cuda": torch.version.cuda},
        "hardware": _hardware(),
        "git": _git(),
        **facts,
    }


def _packages() -> dict[str, str]:
    named = ((d.metadata["Name"], d.version) for d in distributions())
    return dict(sorted((name, version) for name, version in named if name))


def _hardware() -> dict[str, Any]:
    pages = os.sysconf("SC_PHYS_PAGES") if "SC_PHYS_PAGES" in os.sysconf_names else 0
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _git() -> dict[str, Any] | None:
    """Return the commit of the working directory, None where there is none."""
    commit = _run_git("rev-parse", "HEAD")
    if not commit:
        return None
    return {"commit": commit, "dirty": bool(_run_git("status", "--porcelain"))}


def _run_git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
