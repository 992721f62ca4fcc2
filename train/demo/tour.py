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


def run(folder: Path, corpora_only: bool = False) -> int:
    """Give the tour in `folder`, or only write its corpora there; return the exit code."""
    began = time.monotonic()
    try:
        if corpora_only:
            _write_corpora(folder)
            return 0
        _enter(folder)
        _say("Step 0: three raw corpora out of installed packages")
        _write_corpora(folder)
        _prepare(folder)
        _train(folder)
    except DemoError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    print(_summary(folder, time.monotonic() - began))
    return 0


def _enter(folder: Path) -> None:
    """Make the folder, or take over an earlier demo's and its finished work."""
    config = folder / "geodata.yaml"
    known = config.exists() and config.read_text(encoding="utf-8") == CONFIG
    if folder.exists() and any(folder.iterdir()) and not known:
        raise DemoError(f"{folder} is neither empty nor of an earlier demo; use --dir")
    folder.mkdir(parents=True, exist_ok=True)
    config.write_text(CONFIG, encoding="utf-8")
    (folder / "airports.yaml").write_text(AIRPORTS, encoding="utf-8")
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
    for name, config in (("messages", "geodata.yaml"), ("airports", "airports.yaml")):
        for region, part in _inspected(folder, name, config)["regions"].items():
            rows.append(
                (name, region, f"{part['records']:,}", f"{part['bytes']:,}", part["shards"])
            )
    lines = (folder / "runs/messages/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    evals = [record for line in lines if (record := json.loads(line))["kind"] == "eval"]
    first, last = evals[0], evals[-1]
    return f"""
── Summary ({seconds:.0f} s)
{_table(rows)}

held-out text, bits per byte   {first["bits_per_byte"]:.3f} → {last["bits_per_byte"]:.3f}
held-out text, loss            {first["loss"]:.3f} → {last["loss"]:.3f} \
({last["samples"]:,} records, step {last["step"]:,})

config      {folder}/geodata.yaml
corpora     {folder}/corpus
datasets    {folder}/data/messages, {folder}/data/airports
cache       {folder}/cache/eu-central
audit log   {folder}/audit
run         {folder}/runs/messages (metrics.jsonl, lineage.json, checkpoints)"""


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
