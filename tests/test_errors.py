"""A block that must fail: what is shown, and what is not mistaken for it."""

import pytest

from helpers.errors import expected


def test_no_error_is_a_failure(capsys):
    says = "expected ValueError with 'this', and nothing"
    with pytest.raises(AssertionError, match=says), expected(ValueError, "this"):
        pass
    assert capsys.readouterr().out == ""


OTHERS = [ValueError("something else"), TypeError("this"), AssertionError("this")]


@pytest.mark.parametrize("error", [*OTHERS, KeyboardInterrupt("this")], ids=repr)
def test_another_error_passes_unchanged(error, capsys):
    with pytest.raises(type(error)) as raised, expected(ValueError, "this"):
        raise error
    assert raised.value is error
    assert capsys.readouterr().out == ""
