"""What only a CUDA device can show: the correctness checks of the prepared script."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_every_check_of_the_script_passes(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--only", "correctness", "--output", str(tmp_path)]
    # the other tests run kernels in triton's interpreter
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped:" not in done.stdout, done.stdout
