"""The house stands: imports go downwards, and asking for help costs nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {
    "torch",
    "numpy",
    "pyarrow",
    "h5py",
    "boto3",
    "ray",
    "redis",
    "PIL",
    "transformers",
    "tokenizers",
    "webdataset",
    "simplejpeg",
}


def test_imports_keep_to_the_layers():
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def loaded_by(code):
    script = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


HELP = """
sys.argv = ['{name}', '--help']
try:
    from {module} import main
    main()
except SystemExit as stop:
    assert not stop.code
"""


@pytest.mark.parametrize(
    "code",
    [
        "import geodata",
        "import train",
        HELP.format(name="geodata", module="geodata.cli"),
        HELP.format(name="train", module="train.__main__"),
    ],
)
def test_help_and_import_load_nothing_heavy(code):
    assert loaded_by(code) & HEAVY == set()


def test_the_public_names_exist():
    import geodata

    for name in geodata.__all__:
        assert getattr(geodata, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        geodata.nothing  # noqa: B018
