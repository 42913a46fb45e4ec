"""Models of well-known libraries hold the contract, or are refused in one sentence.

The libraries stand in requirements.txt and alone.txt, which say how an environment is made that
has them; the workflow `wild` does it each night.
"""

from importlib.util import find_spec

import pytest

from tests.support import contract, libraries

MODELS = [
    pytest.param(
        library,
        name,
        marks=pytest.mark.skipif(
            find_spec(libraries.LIBRARIES[library][0]) is None,
            reason=f"{library} is not installed: see tests/wild/requirements.txt",
        ),
    )
    for library, models in libraries.LISTED.items()
    for name in models
]


@pytest.mark.parametrize(("library", "name"), MODELS)
def test_every_way_is_right_and_leaves_the_model_as_it_was(library, name):
    broken, refused = contract.check(*libraries.make(library, name, 3))
    assert not broken, "\n".join(broken)
    if refused:
        pytest.xfail("refused: " + "; ".join(refused))
