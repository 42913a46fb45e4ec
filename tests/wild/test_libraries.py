"""Models of well-known libraries hold the contract, or are refused in one sentence.

The libraries stand in requirements.txt and alone.txt, which say how an environment is made that
has them; the workflow `wild` does it each night.
"""

from importlib.util import find_spec

import pytest

from tests.support import contract, libraries

MODELS = []
for _library, _models in libraries.LISTED.items():
    _package, _ = libraries.LIBRARIES[_library]
    _skip = pytest.mark.skipif(
        find_spec(_package) is None,
        reason=f"{_library} is not installed: see tests/wild/requirements.txt",
    )
    for _name in _models:
        MODELS.append(pytest.param(_library, _name, marks=_skip))


@pytest.mark.parametrize(("library", "name"), MODELS)
def test_every_way_is_right_and_leaves_the_model_as_it_was(library, name):
    model, data = libraries.make(library, name, 3)
    broken, refused = contract.check(model, data)
    assert not broken, "\n".join(broken)
    if refused:
        pytest.xfail("refused: " + "; ".join(refused))
