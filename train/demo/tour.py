"""The steps of the demo, in order, and the summary that ends it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from train.demo.corpus import DemoError, write_airports, write_digits, write_messages
from train.demo.server import region_redis

CONFIGS = {
    "messages": "geodata.yaml",
    "airports": "airports.yaml",
    "digits": "digits.yaml",
}

STOP_AT = 120
"""The step at which the demo plays a spot machine that is taken away."""

CONFIG = """\
# What `python -m train demo` shows: translations of Django in 98 locales, by the country of
# their language, kept in three regions.
dataset: {name: messages, root: data/messages}
here: eu-central                          # the region this machine stands in
regions:
  eu-central:   {jurisdiction: DE, cache: {nvme: cache/eu-central, size: 1GiB}}
  us-east:      {jurisdiction: US}
  ap-northeast: {jurisdiction: JP}
tagging:
  region:
    field: country
    map:
      eu-central: [AT, BE, BG, CH, CZ, DE, DK, EE, ES, FI, FR, GB, GR, HR, HU, IE, IS, IT, LT, LU,
                   LV, NL, NO, PL, PT, RO, SE, SI, SK]
      us-east: [AR, BR, CA, CO, HT, MX, NI, PR, US, VE]
      ap-northeast: [AU, ID, JP, KH, KR, MM, MY, TH, TW, VN]
  unknown: eu-central                     # the strictest; counted, and treated as personal
  rules:
    # As if the messages about logging in told of people: each region keeps its own.
    - when: {field: catalogue, equals: auth}
      tag: {data_category: PersonalData, legal_basis: "eu-gdpr:A6-1-f", purposes: [ModelTraining],
            retention: 24 months}
    - {when: {region: known}, tag: {data_category: NonPersonalData}}
loader:
  global_batch: 16
  seed: 7
  split: {heldout: 0.05}
  text: {column: text, tokenizer: bytes, length: 256}
train:
  steps: 360
  model: {kind: gpt2, config: {n_layer: 3, n_embd: 128, n_head: 4, n_positions: 256,
          resid_pdrop: 0.0, embd_pdrop: 0.0, attn_pdrop: 0.0}}
  optimizer: {lr: 0.003}
  schedule: {warmup_steps: 40}
  eval: {every: 120}
  checkpoint: {every: 100}
  log_every: 40
"""

AIRPORTS = """\
# A second dataset, from a table: the airports of the world by country.
dataset: {name: airports, root: data/airports}
here: eu-central
regions:
  eu-central:   {jurisdiction: DE}
  us-east:      {jurisdiction: US}
  ap-northeast: {jurisdiction: JP}
tagging:
  region:
    field: country
    map: {eu-central: [AT, DE, ES, FR, IT, NL, PL], us-east: [CA, US], ap-northeast: [JP, KR]}
  unknown: eu-central
  rules:
    - {when: {field: icao, present: true}, tag: {data_category: NonPersonalData}}
"""

DIGITS = """\
# A third dataset, of images: handwritten digits, in WebDataset shards. As if the even ones had been
# written in America; being of nobody in particular, all may be read from everywhere.
dataset: {name: digits, root: data/digits}
here: eu-central
regions:
  eu-central:   {jurisdiction: DE, root: disks/eu, cache: {nvme: cache/digits, size: 1GiB}}
  us-east:      {jurisdiction: US, root: disks/us}
tagging:
  region: {pattern: "^digits/([0-9])/", map: {us-east: ["0", "2", "4", "6", "8"]}}
  unknown: eu-central
  rules:
    - {when: {field: image, present: true}, tag: {data_category: NonPersonalData}}
loader:
  global_batch: 32
  seed: 7
  split: {heldout: 0.2}
  image: {size: 16, crop: random, area: [0.7, 1.0], aspect: [0.9, 1.1]}
train:
  steps: 150
  model:
    kind: resnet
    norm: group
    config: {embedding_size: 32, hidden_sizes: [32, 64], depths: [1, 1], layer_type: basic}
  label_smoothing: 0.1
  optimizer: {lr: 0.005}
  schedule: {warmup_steps: 20}
  eval: {every: 75}
  log_every: 30
"""


def run(folder: Path, corpora_only: bool = False) -> int:
    """Give the tour in `folder`, or only write its corpora there; return the exit code."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, _stop)
    try:
        if corpora_only:
            _write_corpora(folder)
            return 0
        _enter(folder)
        _say("Step 0: three raw corpora out of installed packages")
        _write_corpora(folder)
        _prepare(folder)
        _train(folder)
        _classify(folder)
    except DemoError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print("\ninterrupted; run the demo again to go on", file=sys.stderr)
        return 130
    print(_summary(folder, time.monotonic() - began))
    return 0


def _stop(_number: int, _frame: object) -> None:
    """End by way of what cleans up."""
    raise DemoError("stopped", os.EX_TEMPFAIL)


def _enter(folder: Path) -> None:
    """Make the folder, or take over an earlier demo's and its finished work."""
    config = folder / "geodata.yaml"
    known = config.exists() and config.read_text(encoding="utf-8") == CONFIG
    if folder.exists() and any(folder.iterdir()) and not known:
        raise DemoError(f"{folder} is neither empty nor of an earlier demo; use --dir")
    folder.mkdir(parents=True, exist_ok=True)
    config.write_text(CONFIG, encoding="utf-8")
    (folder / "airports.yaml").write_text(AIRPORTS, encoding="utf-8")
    (folder / "digits.yaml").write_text(DIGITS, encoding="utf-8")
    if (folder / "runs").exists():
        _say("An earlier demo was here: its data are reused, its run is removed and made again.")
        shutil.rmtree(folder / "runs")


def _write_corpora(folder: Path) -> None:
    messages = write_messages(folder / "corpus/messages.jsonl")
    airports = write_airports(folder / "corpus/airports.csv")
    print(f"corpus/messages.jsonl: {messages:,} records of Django's translations")
    digits = write_digits(folder / "corpus/digits")
    print(f"corpus/airports.csv: {airports:,} airports")
    print(f"corpus/digits: {digits:,} images of handwritten digits")


def _prepare(folder: Path) -> None:
    _say("Convert, partition by region with tags, look, verify")
    for command in (
        "geodata convert corpus/messages.jsonl data/raw",
        "geodata shard data/raw --shard-size 256KiB",
        "geodata inspect messages --head 2",
        "geodata verify messages",
        "geodata convert corpus/airports.csv data/raw-airports",
        "geodata shard data/raw-airports --config airports.yaml",
    ):
        _check(_command(folder, command).wait())


def _train(folder: Path) -> None:
    _say(f"Train on what eu-central may read; after step {STOP_AT} the machine is taken away")
    code = _command_stopped(folder, "python -m train geodata.yaml", f"step {STOP_AT}/")
    if code != os.EX_TEMPFAIL:
        raise DemoError("the run was to stop with exit code 75", code or 1)
    print(f"(exit code {code}: stopped on notice, resumable)")
    _say("The same command resumes: the same ids, the same losses as if nothing had happened")
    _check(_command(folder, "python -m train geodata.yaml").wait())


def _classify(folder: Path) -> None:
    _say("Images: digits in WebDataset shards, each region's at a root of its own")
    for command in (
        "geodata convert corpus/digits data/raw-digits --format webdataset",
        "geodata shard data/raw-digits --config digits.yaml",
        "geodata inspect digits --config digits.yaml --png digits.png",
    ):
        _check(_command(folder, command).wait())
    with region_redis(folder) as url:
        shared = f" regions.eu-central.cache.redis={url}" if url else ""
        _say("Train a small image classifier; what it reads goes to the region's Redis too")
        _check(_command(folder, f"python -m train digits.yaml{shared}").wait())
        if url:
            _say("A second node of the region: its disk is empty, and the Redis has it all")
            other = "regions.eu-central.cache.nvme=cache/node-2 train.run_dir=runs/node-2"
            line = f"python -m train digits.yaml train.steps=1{shared} {other}"
            _check(_command(folder, line).wait())


def _check(code: int) -> None:
    if code:
        raise DemoError(f"the command ended with exit code {code}", code)


def _say(text: str) -> None:
    print(f"\n── {text}", flush=True)


def _command(folder: Path, line: str, **options: Any) -> subprocess.Popen[str]:
    """Start the command that `line` shows, in the demo's folder."""
    print(f"\n$ {line}", flush=True)
    name, *arguments = shlex.split(line)
    module = ["-m", "geodata.cli"] if name == "geodata" else []
    command = [sys.executable, *module, *arguments]
    return subprocess.Popen(command, cwd=folder, env=_environment(), text=True, **options)


def _command_stopped(folder: Path, line: str, mark: str) -> int:
    """Run a command, send it SIGTERM when it says `mark`, and return its exit code."""
    with _command(folder, line, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for told in process.stderr:
            print(told, end="", file=sys.stderr, flush=True)
            if told.startswith(mark):
                process.send_signal(signal.SIGTERM)
    return process.returncode


def _environment() -> dict[str, str]:
    """Return the environment in which the commands find the packages that we run from."""
    root = str(Path(__file__).absolute().parents[2])
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, known]))}


def _summary(folder: Path, seconds: float) -> str:
    rows: list[Sequence[object]] = [("dataset", "region", "records", "bytes", "shards")]
    for name, config in CONFIGS.items():
        for region, part in _inspected(folder, name, config)["regions"].items():
            rows.append(
                (name, region, f"{part['records']:,}", f"{part['bytes']:,}", part["shards"])
            )
    first, last = _evaluations(folder / "runs/messages")
    blank, seeing = _evaluations(folder / "runs/digits")
    return f"""
── Summary ({seconds:.0f} s)
{_table(rows)}

held-out text, bits per byte   {first["bits_per_byte"]:.3f} → {last["bits_per_byte"]:.3f}
held-out text, loss            {first["loss"]:.3f} → {last["loss"]:.3f} \
({last["samples"]:,} records, step {last["step"]:,})
held-out digits, accuracy      {blank["accuracy"]:.3f} → {seeing["accuracy"]:.3f} \
({seeing["samples"]:,} images; always the commonest: {seeing["majority"]:.3f})

configs     {folder}/geodata.yaml, airports.yaml, digits.yaml
corpora     {folder}/corpus
datasets    {folder}/data, {folder}/disks/eu, {folder}/disks/us
cache       {folder}/cache
a picture   {folder}/digits.png
audit log   {folder}/audit
runs        {folder}/runs/messages, runs/digits (metrics.jsonl, lineage.json, checkpoints)"""


def _evaluations(run: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the first and the last evaluation of a run."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    found = [record for line in lines if (record := json.loads(line))["kind"] == "eval"]
    return found[0], found[-1]


def _inspected(folder: Path, name: str, config: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "geodata.cli", "inspect", name, "--config", config, "--json"]
    done = subprocess.run(
        command, cwd=folder, env=_environment(), capture_output=True, text=True, check=False
    )
    _check(done.returncode)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _table(rows: Sequence[Sequence[object]]) -> str:
    """Return rows as aligned text, numbers to the right."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in texts) for i in range(len(texts[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in texts
    )
