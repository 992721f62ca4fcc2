"""A job's folder is taken by one process at a time, while others' come and go."""

from pathlib import Path

import pytest

from geodata.errors import StoreError
from geodata.jobs.base import JobFolder


@pytest.mark.parametrize("error", [FileExistsError, FileNotFoundError])
def test_a_folder_that_another_process_removes_meanwhile_is_made_again(
    tmp_path, monkeypatch, error
):
    made, calls = Path.mkdir, []

    def mkdir(path, *arguments, **options):
        calls.append(path)
        if len(calls) == 1:
            raise error(17, "it was there, and went")
        made(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    job = JobFolder(tmp_path, "some")
    with job.held():
        assert (job.path / "lock").exists()
        with pytest.raises(StoreError, match="running in another process"):
            JobFolder(tmp_path, "some")._take()


def test_a_file_in_its_place_is_told(tmp_path):
    (tmp_path / ".jobs").mkdir()
    (tmp_path / ".jobs/some").write_text("")
    with (
        pytest.raises(StoreError, match="cannot write: File exists"),
        JobFolder(tmp_path, "some").held(),
    ):
        pass
