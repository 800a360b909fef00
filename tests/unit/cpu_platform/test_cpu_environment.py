"""The check that a launcher makes before Ray starts."""

import os

import pytest

from recipe.cpu_platform import ACTIVATION_MODULE, ENVIRONMENT, check_environment, prepare_vllm


@pytest.mark.parametrize(
    ("modules", "platform", "advice"),
    [
        ("", "", f"export VERL_USE_EXTERNAL_MODULES={ACTIVATION_MODULE}$"),
        ("mine", "", f"export VERL_USE_EXTERNAL_MODULES=mine,{ACTIVATION_MODULE}$"),
        (f"mine,{ACTIVATION_MODULE}", "nvidia", "unset VERL_PLATFORM"),
    ],
)
def test_a_wrong_variable_is_answered_with_the_line_to_run(
    modules: str, platform: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", modules)
    monkeypatch.setenv("VERL_PLATFORM", platform or "cpu")
    with pytest.raises(ValueError, match=advice):
        check_environment()
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", f"mine,{ACTIVATION_MODULE}")
    monkeypatch.delenv("VERL_PLATFORM")
    check_environment()


def test_a_command_beside_a_job_leaves_what_the_user_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, ENVIRONMENT[name])
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "INFO")
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    prepare_vllm()
    assert os.environ["VLLM_LOGGING_LEVEL"] == "INFO" and os.environ["TOKENIZERS_PARALLELISM"] == "false"
