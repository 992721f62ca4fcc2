"""What goes wrong is told in one line, with the right exit code, and ruins nothing."""

from __future__ import annotations

import hashlib
import json
import resource
import subprocess
import sys

import pytest
import yaml

from train import durable


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one error line on stderr."""
    errors = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error:")]
    assert len(errors) == 1
    return errors[0]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.optimiser.lr=1", ["train.optimiser", "did you mean 'optimizer'"]),
        ("train.optimizer.lr=-1", ["train.optimizer.lr", "greater than 0"]),
        ("train.optimizer.lr=.inf", ["train.optimizer.lr", "finite number"]),
        ("train.optimizer.betas=[1, 2]", ["train.optimizer.betas.0", "less than 1"]),
        ("train.epochs=2", ["train", "steps or epochs, not both"]),
        ("train.model.config.n_layers=2", ["train.model.config.n_layers", "no such key"]),
        ("train.model.config.n_head=3", ["train.model.config", "divisible"]),
        ("train.model.config.n_head=0", ["train.model.config makes no model"]),
        ("train.model.config.n_layer=abc", ["train.model.config", "n_layer", "expected int"]),
        ("train.model.config.vocab_size=10", ["vocab_size", "below the loader's 257"]),
        ("train.model.config.n_positions=32", ["n_positions", "loader.text.length"]),
        ("train.model.config=absent.json", ["no readable transformers config", "absent.json"]),
        ("train.device=cuda", ["GPUs", "train.device"]),
        ("dataset=null", ["dataset"]),
        ("train.seed", ["is no override"]),
    ],
)
def test_a_wrong_value_names_its_key(project, capsys, override, words):
    assert project.run(override) == 2
    told = error_of(capsys)
    assert all(word in told for word in words), told


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.optimizer.lr=0.5", "train.optimizer.lr was 0.01"),
        ("train.seed=9", "train.seed was 0"),
        ("train.model.config.n_layer=2", "train.model.config.n_layer was 1"),
        ("train.clip=null", "train.clip was 1.0"),
        ("loader.seed=8", "seed"),
        ("loader.text.length=40", "loader.text.length was"),
        ("loader.text.masked=0.1", "loader.text"),
    ],
)
def test_a_run_cannot_become_another_one(project, capsys, override, words):
    assert project.run("train.steps=2") == 0
    before = project.metrics()
    capsys.readouterr()
    assert project.run("train.steps=4", override) == 2
    assert words in error_of(capsys)
    assert project.metrics() == before


def test_a_run_goes_on_that_began_before_a_setting_existed(project):
    assert project.run("train.steps=2") == 0
    folder = project.folder / "runs/posts/checkpoints/step-00000002"
    config = yaml.safe_load((folder / "config.yaml").read_text())
    for key in ("image", "label_smoothing", "max_skips"):
        del config["train"][key]
    for key in ("label", "norm"):
        del config["train"]["model"][key]
    text = yaml.safe_dump(config)
    (folder / "config.yaml").write_text(text)
    state = json.loads((folder / "state.json").read_text())
    state["files"]["config.yaml"]["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "state.json").write_text(json.dumps(state))
    assert project.run("train.steps=4") == 0
    assert [record["step"] for record in project.metrics()] == [1, 2, 3, 4]


def test_length_and_housekeeping_may_change(project, capsys):
    assert project.run("train.steps=3") == 0
    changes = ("train.steps=6", "train.log_every=1", "train.accumulation=2", "train.eval.every=2")
    assert project.run(*changes, "train.checkpoint={every: 1, keep: 2}") == 0
    assert [record["step"] for record in project.metrics()] == [1, 2, 3, 4, 5, 6]
    assert project.checkpoints() == ["step-00000005", "step-00000006"]
    capsys.readouterr()
    assert project.run("train.steps=6", "--json") == 0
    shown = capsys.readouterr()
    assert "finished at step 6" in shown.err
    assert json.loads(shown.out)["steps"] == 6


def test_a_second_process_in_the_folder_is_refused(project, capsys):
    folder = project.folder / "runs/posts"
    folder.mkdir(parents=True)
    with durable.held(folder / ".lock") as free:
        assert free
        assert project.run() == 2
    assert "another process is training here" in error_of(capsys)
    assert project.run("train.steps=1") == 0


def test_diverging_stops_before_anything_is_overwritten(project, capsys):
    assert project.run("train.optimizer.lr=1e30", "train.checkpoint.every=1") == 1
    told = error_of(capsys)
    assert "became" in told
    assert "at step" in told
    assert "last good checkpoint" in told
    last = project.metrics()[-1]
    assert last["loss"] is not None
    assert project.checkpoints()[-1] == f"step-{last['step']:08}"


def test_a_full_disk_leaves_the_older_checkpoint(project, capsys, monkeypatch):
    assert project.run("train.steps=2", "train.run_dir=runs/whole") == 0

    def full(name: str) -> None:
        if name == "write optimizer.pt" and project.checkpoints():
            saved = [n for n in project.checkpoints() if n.startswith("step-")]
            if saved == ["step-00000002"]:
                raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable, "on_point", full)
    assert project.run("train.steps=4", "train.checkpoint.every=2") == 4
    told = error_of(capsys)
    assert "the checkpoint of step 4 cannot be written: No space left on device" in told
    assert project.checkpoints() == ["step-00000002"]
    monkeypatch.undo()
    assert project.run("train.steps=4", "train.checkpoint.every=2") == 0
    assert [record["step"] for record in project.metrics()] == [1, 2, 3, 4]


def test_a_file_too_large_for_the_disk_is_told_by_its_cause(project, capsys):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 10, hard))
    try:
        code = project.run("train.steps=1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == 4
    assert "File too large" in error_of(capsys)
    assert project.checkpoints() == []


def test_a_policy_denial_is_exit_3(project, capsys, monkeypatch):
    from geodata.errors import PolicyDenied
    from train import trainer

    def deny(*_arguments: object) -> None:
        raise PolicyDenied("write from us-east to eu-central denied by rule home-only")

    monkeypatch.setattr(trainer, "admit_checkpoint", deny)
    assert project.run() == 3
    assert "home-only" in error_of(capsys)
    assert project.checkpoints() == []


def test_a_file_of_the_users_that_hides_us_is_told(project, capsys, monkeypatch):
    (project.folder / "train.py").write_text("print('mine')\n")
    monkeypatch.chdir(project.folder)
    assert project.run("train.lr=1") == 2
    assert "train.py hides `python -m train` here" in capsys.readouterr().err


def test_help_and_mistakes_load_no_torch(project):
    code = (
        "import sys, contextlib\n"
        "from train.__main__ import main\n"
        "for arguments in (['--help'], ['demo', '--help'], sys.argv[1:]):\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        main(arguments)\n"
        "assert not {'torch', 'numpy', 'transformers', 'pyarrow'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", code, str(project.config), "train.lr=1"]
    done = subprocess.run(
        command, env=project.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "train.lr: no such key" in done.stderr
