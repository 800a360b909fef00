"""The check that a launcher makes before Ray starts."""

import subprocess
import sys

import pytest

from recipe.cpu_platform import ACTIVATION_MODULE, ENVIRONMENT, check_environment


def test_environment_passes_its_own_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    check_environment()


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


def test_other_platform_is_a_contradiction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", ACTIVATION_MODULE)
    monkeypatch.setenv("VERL_PLATFORM", "nvidia")
    with pytest.raises(ValueError, match="unset VERL_PLATFORM"):
        check_environment()


def test_launcher_side_needs_neither_torch_nor_verl() -> None:
    code = "import sys, recipe.cpu_platform; print(sorted({'torch', 'verl', 'ray', 'vllm'} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
