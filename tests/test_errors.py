"""A block that must fail: what is shown, and what is not mistaken for it."""

import pytest

from helpers.errors import expected


def test_the_expected_error_is_printed_and_over(capsys):
    with expected(ValueError, "3 and 2"):
        raise ValueError("sizes differ: 3 and 2, at 0x7f01")
    assert capsys.readouterr().out == "ValueError: ...3 and 2...\n"


def test_a_message_of_several_lines_reads_as_one(capsys):
    with expected(RuntimeError, "first line second line"):
        raise RuntimeError("the first line\n    second   line\n")
    assert capsys.readouterr().out == "RuntimeError: ...first line second line...\n"


def test_a_subclass_is_named_as_what_it_is(capsys):
    with expected(LookupError, "key"):
        raise KeyError("key")
    assert capsys.readouterr().out == "KeyError: ...key...\n"


def test_no_error_is_a_failure(capsys):
    with pytest.raises(AssertionError) as raised, expected(ValueError, "this"):
        pass
    assert str(raised.value) == "expected ValueError with 'this', and nothing was raised"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "error",
    [
        ValueError("something else"),
        TypeError("the fragment"),
        AssertionError("the fragment"),
        KeyboardInterrupt("the fragment"),
    ],
    ids=repr,
)
def test_another_error_passes_unchanged(error, capsys):
    with pytest.raises(type(error)) as raised, expected(ValueError, "the fragment"):
        raise error
    assert raised.value is error
    assert capsys.readouterr().out == ""
