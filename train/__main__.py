"""`python -m train CONFIG.yaml [section.key=value …]`, and `python -m train demo`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from train.remote import GeodataConfig

DEFAULT_FILE = "geodata.yaml"


@click.command(epilog="`python -m train demo` shows the whole way on real data.")
@click.argument("arguments", nargs=-1, metavar="[CONFIG.yaml] [SECTION.KEY=VALUE]...")
@click.option("--nproc", type=click.IntRange(min=1), help="Processes on this machine.")
@click.option("--region", help="Read as this region; default: `here` of the config.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
@click.version_option(package_name="geodata-train")
def train(arguments: tuple[str, ...], nproc: int | None, region: str | None, as_json: bool) -> None:
    """Train the model that a config describes on the shards of a region.

    The run's folder holds config, environment, lineage, metrics and checkpoints; the same command
    resumes it. Exit codes: 0 done, 1 the data or the numbers are wrong, 2 a mistake, 3 refused by
    policy, 4 a retry may help, 75 stopped on notice and resumable, 130 interrupted and resumable.
    """
    _tell_of_shadow()
    path, overrides = _split(arguments)
    if nproc is not None and nproc > 1:
        sys.exit(_launch(path, overrides, nproc, region, as_json))
    code = _work(path, overrides, region, as_json)
    if _under_torchrun():
        from train import parallel

        parallel.leave(code)
    sys.exit(code)


@click.command()
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=Path("geodata-demo"))
@click.option("--corpora-only", is_flag=True, help="Write the raw corpora, and no more.")
def demo(folder: Path, corpora_only: bool) -> None:
    """Convert, shard, verify, train, stop and resume on real text and images."""
    from train.demo import run

    sys.exit(run(folder, corpora_only))


def _split(arguments: tuple[str, ...]) -> tuple[Path, list[str]]:
    """Return the config's path and the overrides."""
    if arguments and "=" not in arguments[0]:
        return Path(arguments[0]), list(arguments[1:])
    return Path(DEFAULT_FILE), list(arguments)


def _launch(path: Path, overrides: list[str], nproc: int, region: str | None, as_json: bool) -> int:
    """Check the config here, once, then hand over to torchrun."""
    from train.remote import INTERRUPTED, GeodataError

    try:
        _load(path, overrides)
        from train import elastic

        options = ["--json"] * as_json + (["--region", region] if region else [])
        return elastic.launch([str(path), *overrides, *options], nproc)
    except GeodataError as error:
        if as_json:
            print(json.dumps(error.to_json(), ensure_ascii=False))
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED


def _work(path: Path, overrides: list[str], region: str | None, as_json: bool) -> int:
    """Be one process of the run; return its exit code."""
    from train.remote import INTERRUPTED, GeodataError

    try:
        return _train(path, overrides, region, as_json)
    except GeodataError as error:
        if as_json and not _under_torchrun():
            print(json.dumps(error.to_json(), ensure_ascii=False))
        return _failed(error, error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        return _broken(error)


def _train(path: Path, overrides: list[str], region: str | None, as_json: bool) -> int:
    config = _load(path, overrides)
    from train import parallel
    from train.monitor import configure_logging
    from train.trainer import Trainer

    configure_logging(first=parallel.rank() == 0)
    if _under_torchrun() and not parallel.prepared_agent() and parallel.rank() == 0:
        print(
            "warning: start with --nproc, or set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for "
            "torchrun: without it a restart can fail",
            file=sys.stderr,
        )
    summary = Trainer(config, region=region).run()
    code: int = summary.pop("exit_code")
    if as_json and parallel.rank() == 0:
        print(json.dumps(summary))
    return code


def _load(path: Path, overrides: list[str]) -> GeodataConfig:
    """Return the config; its `train:` section is checked too, before torch is loaded."""
    from train.remote import MissingExtra, load_config, train_config

    here = os.environ.get("GEODATA_REGION")
    config = load_config(path, [*overrides, *([f"here={json.dumps(here)}"] if here else [])])
    train_config(config, path)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin starve the loader's
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingExtra.of("torch", "train") from error
    return config


def _failed(error: Exception, code: int) -> int:
    """Tell of an error in one line, or leave it to torchrun's agent; return the exit code."""
    if _under_torchrun():
        from train import elastic

        elastic.report_failure(error)
    else:
        print(f"error: {error}", file=sys.stderr)
    return code


def _broken(error: Exception) -> int:
    """Tell a lost process from a fault of ours, which keeps its traceback."""
    if not _under_torchrun():
        raise error
    from train import elastic, parallel

    if parallel.is_lost_peer(error):
        error = elastic.LostPeer(f"lost another process of the run: {_first_line(error)}")
        return _failed(error, error.exit_code)
    return _failed(error, 1)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def _tell_of_shadow() -> None:
    """Say so if a file of the user's hides the trainer from `python -m train` here."""
    ours = Path(__file__).with_name("__init__.py")
    for name in ("train.py", "train/__init__.py"):
        file = Path(name)
        if not sys.flags.safe_path and file.is_file() and not file.samefile(ours):
            print(
                f"note: {name} hides `python -m train` here; geodata-train works", file=sys.stderr
            )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; always ends in SystemExit."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["demo"]:
        demo.main(given[1:], prog_name="python -m train demo")
    train.main(given, prog_name="python -m train")


if __name__ == "__main__":
    main()
