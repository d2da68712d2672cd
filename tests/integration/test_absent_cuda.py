"""No tensor on another device, no value read on the host: every family on a CUDA that is not there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="a device guard for CUDA is compiled")
def test_every_family_runs_on_cuda_as_far_as_shapes_and_devices_go() -> None:
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("absent_cuda.py"))],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout).keys() == {
        "attend_kernel",
        "attend_latent_kernel",
        "chosen_hidden_kernel",
        "chosen_output_kernel",
        "combine_kernel",
        "gate_kernel",
        "grouped_hidden_kernel",
        "grouped_output_kernel",
        "rms_norm_kernel",
        "rotate_kernel",
        "route_kernel",
        "weighted_sum_kernel",
    }
