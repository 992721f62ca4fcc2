"""Worker processes end with their parent, however it ends."""

import subprocess
import sys
from pathlib import Path

import pytest

UNFINISHED = """
import sys
from geodata.config import load_config
from geodata.loader import build_loader

if __name__ == "__main__":
    overrides = ["loader.workers=2", "loader.start_method={method}", "loader.global_batch=4"]
    loader = build_loader(load_config(sys.argv[1], overrides))
    steps = iter(loader)
    print(next(steps)["sample"].shape[0], flush=True)
    {end}
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("end", ["pass", "sys.exit(3)", "1 / 0"])
def test_a_script_ends_in_the_middle_of_an_epoch(posts_dataset, tmp_path, method, end):
    script = tmp_path / "script.py"
    script.write_text(UNFINISHED.format(method=method, end=end))
    done = subprocess.run(
        [sys.executable, script, posts_dataset],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "4\n"
    assert done.returncode == {"pass": 0, "sys.exit(3)": 3, "1 / 0": 1}[end], done.stderr
