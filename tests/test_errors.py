"""A block that must fail: what is shown, and what is not mistaken for it."""

import pytest

from helpers.errors import expected

SHOWN = {
    "ValueError: ...3 and 2...\n": (ValueError, ValueError("sizes differ: 3 and 2, at 0x7f01")),
    "RuntimeError: ...a line and one...\n": (RuntimeError, RuntimeError("a line\n  and   one\n")),
    "KeyError: ...key...\n": (LookupError, KeyError("key")),
}


@pytest.mark.parametrize("shown", SHOWN)
def test_the_expected_error_is_printed_and_over(shown, capsys):
    kind, error = SHOWN[shown]
    with expected(kind, shown.split("...")[1]):
        raise error
    assert capsys.readouterr().out == shown


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
