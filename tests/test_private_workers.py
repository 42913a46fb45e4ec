"""Private training by several processes: what one gives, the same bits in all of them."""

import pytest
import torch

from tests.support import private_cases, workers

WORLDS = (1, 3)
several = pytest.mark.parametrize("found", WORLDS[1:], indirect=True, ids="{} processes".format)
CLOSE = {"rtol": 0, "atol": 1e-6}
"""A sum of 40 clipped gradients and the noise has entries of order 1, in float32: 8 units of the
last place, for sums in another order."""


@pytest.fixture(scope="module", params=WORLDS, ids="{} processes".format)
def found(request, tmp_path_factory):
    """What each process found, in the order of ranks."""
    folder = tmp_path_factory.mktemp("private")
    return workers.run("tests.support.private_cases:in_a_group", request.param, folder)


def close(got, expected):
    assert list(got) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, **CLOSE)


def same_bits(found, what):
    for other in found[1:]:
        assert all(torch.equal(other[what][name], each) for name, each in found[0][what].items())


def test_training_is_that_of_one_process(found):
    close(found[0]["trained"], private_cases.train(0, 1, None))
    same_bits(found, "trained")


@pytest.mark.parametrize(
    ("what", "count", "options"),
    [
        ("empty shares", 1, {}),
        ("an empty batch", 0, {}),
        ("without noise", 40, {"noise_multiplier": 0.0}),
    ],
)
def test_a_sum_is_that_of_one_process(what, count, options, found):
    expected = private_cases.once(count, 0, 1, None, **options)
    close(found[0][what], expected)
    same_bits(found, what)
    if len(found) == 1 or what == "an empty batch":  # with nothing to add but zeros
        assert all(torch.equal(found[0][what][name], each) for name, each in expected.items())


def test_a_generator_is_in_step_in_all_processes(found):
    assert len({each["next draw"].item() for each in found}) == 1


def test_without_a_group_a_process_is_alone(found):
    expected = private_cases.once(40, 0, 1, None)
    for each in found:
        assert all(torch.equal(each["alone"][name], tensor) for name, tensor in expected.items())


@several
def test_other_settings_are_refused_by_all_processes(found):
    last = len(found) - 1
    for rank, each in enumerate(found):
        noise, limit, size, weights = each["refused"]
        assert noise.startswith("noise_multiplier must be the same in all processes")
        assert f"got {0.5 + rank:g} in this one, and from 0.5 to {0.5 + last:g} in all" in noise
        assert limit.startswith("limit must be the same")
        assert f"got {18 + 6 * rank} in this one" in size
        assert weights.startswith("the sum of the weights must be the same")


@several
def test_the_noise_is_that_of_the_first_in_the_group(found):
    first = len(found) - 2
    generator = private_cases.seeded(first)
    expected = private_cases.once(40, 0, 1, None, generator=generator)
    for each in found[first:]:
        close(each["a smaller group"], expected)
    for each in found[:first]:
        assert each["a smaller group"].startswith("group must be a torch.distributed.ProcessGroup")


@several
def test_weights_may_differ_in_their_last_places(found):
    expected = private_cases.once(40, 0, 1, None)
    for each in found:
        for name, tensor in expected.items():
            torch.testing.assert_close(each["rounded"][name], tensor, rtol=0, atol=1e-5)
