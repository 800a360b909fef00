"""The check that a launcher makes before Ray starts."""

import pytest

from recipe.cpu_platform import ACTIVATION_MODULE, check_environment


def test_missing_variable_is_answered_with_the_line_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VERL_USE_EXTERNAL_MODULES", raising=False)
    with pytest.raises(ValueError, match=f"export VERL_USE_EXTERNAL_MODULES={ACTIVATION_MODULE}$"):
        check_environment()


def test_other_external_modules_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "mine")
    with pytest.raises(ValueError, match=f"export VERL_USE_EXTERNAL_MODULES=mine,{ACTIVATION_MODULE}$"):
        check_environment()
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", f"mine,{ACTIVATION_MODULE}")
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    check_environment()
    monkeypatch.setenv("VERL_PLATFORM", "nvidia")
    with pytest.raises(ValueError, match="unset VERL_PLATFORM"):
        check_environment()
