"""The compiler accepts what the interpreter does: the kernels, for a GPU that need not be there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_kernels_compile_for_hopper_and_use_its_matrix_units(tmp_path: Path) -> None:
    """Types that no GPU mixes, and branches that give a variable two shapes, pass in the interpreter."""
    settings = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compile_kernels.py"))],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    products = json.loads(ran.stdout)
    assert len(products.pop("attend_kernel")) == 3
    assert products.pop("combine_kernel") == [0, 0, 0, 0]
    assert products.pop("chosen_hidden_kernel") == products.pop("chosen_output_kernel") == [0]
    assert products.pop("weighted_sum_kernel") == [0, 0]
    for name in ("rms_norm_kernel", "rotate_kernel", "route_kernel"):
        assert products.pop(name) == [0, 0]
    assert products.pop("gate_kernel") == [0]
    assert products.keys() == {"attend_latent_kernel", "grouped_hidden_kernel", "grouped_output_kernel"}
    assert all(count > 0 for counts in products.values() for count in counts)
