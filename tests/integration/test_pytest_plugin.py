"""The kit's pytest plugin in the test run of another project, which has nothing to do with fuel."""

import os
import subprocess
import sys
from pathlib import Path

TEST = """
import sys
import pytest

@pytest.fixture
def tiny():
    return 3

class TestOfAnotherProject:
    def test_its_own_fixture(self, tiny):
        assert tiny == 3
        assert "fuel_core.pytest_plugin" in sys.modules
        assert "torch" not in sys.modules
"""


def test_another_projects_tests_import_no_torch_and_keep_their_fixtures(tmp_path: Path) -> None:
    """Wherever fuel was installed every pytest run took two seconds longer."""
    (tmp_path / "test_other.py").write_text(TEST)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTEST")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout
