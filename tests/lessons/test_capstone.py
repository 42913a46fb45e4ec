"""The capstone: mended, its script passes the hidden tests, and with one fault it fails its own."""

import os
import re
import subprocess
import sys

import pytest

from tests.support.samples import ROOT

SCRIPT = ROOT / "notebooks" / "capstone.py"
HIDDEN = ROOT / "tests" / "lessons" / "hidden" / "capstone.py"
SHUFFLED = "torch.randperm(count, generator=generator)[:size]"
POISSON = "(torch.rand(count, generator=generator) < rate).nonzero()[:, 0]"
WHOLE = "torch.cat([each.flatten() for each in grads]).norm()"
FAULTS = {
    "samples_do_not_meet": ("nn.BatchNorm1d(32)", "nn.LayerNorm(32)"),
    "batches_are_poisson_samples": (SHUFFLED, POISSON),
    "gradient_is_clipped_over_all_parameters": ("grad.norm()", WHOLE),
    "noise_is_that_of_the_limit": (
        "noise_multiplier * noise)",
        "limit * noise_multiplier * noise)",
    ),
    "each_step_has_noise_of_its_own": ("generator.manual_seed(0)  #", "pass  #"),
    "sum_is_divided_by_the_expected_size": ("/ max(1, len(images))", "/ lot"),
    "epsilon_counts_all_steps": ("multiplier, epochs, delta", "multiplier, steps, delta"),
}
"""What is wrong in the script and what would be right, by the hidden test that finds it."""


@pytest.mark.whole
@pytest.mark.parametrize("left", [None, *FAULTS])
def test_hidden_tests_find_each_fault_alone(left, tmp_path):
    source = SCRIPT.read_text("utf-8")
    expected = set()
    for name, (wrong, right) in FAULTS.items():
        assert source.count(wrong) == 1
        if name == left:
            expected.add(name)
        else:
            source = source.replace(wrong, right)
    script = tmp_path / "capstone.py"
    script.write_text(source, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-rf", HIDDEN]
    environment = os.environ | {"SCRIPT": str(script), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8")
    failed = set(re.findall(r"(?m)^FAILED .+::test_(\w+)", done.stdout))
    assert failed == expected, done.stdout
    assert "passed" in done.stdout
