"""The check that a launcher makes before Ray starts."""

import pytest

from recipe.cpu_platform import ACTIVATION_MODULE, check_environment


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
