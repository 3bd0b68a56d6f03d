"""Which status says how a session ended."""

from __future__ import annotations

import pytest

from p2p.session.endings import is_expected, message_of, status_of


def raised_from(cause: BaseException | None) -> ImportError:
    error = ImportError("initialization failed")
    error.__cause__ = cause
    return error


def test_an_interrupt_in_the_middle_of_an_import_is_a_cancel() -> None:
    error = raised_from(raised_from(KeyboardInterrupt()))
    assert status_of(error) == "cancelled"
    assert is_expected(error)
    assert message_of(error) == "stopped by the person"


@pytest.mark.parametrize("cause", [None, ValueError("broken")])
def test_what_cannot_be_imported_is_an_error(cause: BaseException | None) -> None:
    error = raised_from(cause)
    assert status_of(error) == "error"
    assert not is_expected(error)
    assert message_of(error) == "ImportError: initialization failed"
