"""What the README shows is what happens: its commands, its config and its code are run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from posts import make_posts

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands(prefix):
    """Return the README's commands that start with a word, without their remarks."""
    lines = [
        line[2:]
        for block in blocks("console")
        for line in block.splitlines()
        if line.startswith(f"$ {prefix} ")
    ]
    return [shlex.split(line, comments=True) for line in lines]


def run(command, cwd, **options):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def place(tmp_path):
    (tmp_path / "corpus").mkdir()
    make_posts(tmp_path / "corpus/posts.jsonl", count=200)
    return tmp_path


def config_of(place):
    config, train = (block for block in blocks("yaml"))
    return (config + train).replace("/nvme/cache", str(place / "nvme"))


def test_the_commands_do_what_the_readme_says(place):
    told = commands("geodata")
    assert [command[1] for command in told] == [
        "init",
        "convert",
        "config",
        "shard",
        "shard",
        "inspect",
        "verify",
        "ls",
    ]
    for command in told:
        if command[1] == "config":
            (place / "geodata.yaml").write_text(config_of(place))
        out = run(["-m", "geodata.cli", *command[1:]], place)
        if command[1] == "ls":
            assert all(Path(line).is_file() for line in out.split())
    assert "every digest matches" in run(["-m", "geodata.cli", "verify", "posts"], place)


def test_the_code_runs(place):
    (place / "geodata.yaml").write_text(config_of(place))
    api, loop = blocks("python")
    guarded = "if __name__ == '__main__':\n" + "".join(f"    {line}\n" for line in api.splitlines())
    (place / "script.py").write_text(guarded)
    run(["script.py"], place)
    (place / "loop.py").write_text("rank, world_size = 0, 1\n" + loop + "\nprint(state['epoch'])")
    assert run(["loop.py"], place).strip() == "0"


def test_the_training_config_trains(place):
    (place / "geodata.yaml").write_text(config_of(place))
    run(["-m", "geodata.cli", "convert", "corpus/posts.jsonl", "data/raw"], place)
    run(["-m", "geodata.cli", "shard", "data/raw"], place)
    small = [
        "train.steps=2",
        "train.model.config={n_layer: 1, n_head: 1, n_embd: 8}",
        "loader.global_batch=8",
        "loader.text={length: 32}",
    ]
    for command in commands("python"):
        if command[2:4] == ["train", "geodata.yaml"] and "--nproc" not in command:
            run([*command[1:4], *small, "--json"], place)
    assert (place / "runs/posts/metrics.jsonl").exists()


def test_the_two_commands_are_there():
    shown = blocks("console")[0]
    assert 'pip install -c constraints.txt -e ".[demo]" && python -m train demo' in shown
    assert 'pip install -c constraints.txt -e ".[dev]" && pytest' in shown
    assert len(README.splitlines()) < 400
