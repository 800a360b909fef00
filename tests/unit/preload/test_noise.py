"""Warnings of other packages that come at each start."""

import logging

import pytest

from recipe.preload.noise import EXPECTED, drop_expected


@pytest.mark.parametrize("name", EXPECTED)
def test_only_the_expected_line_is_dropped(name: str, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger(name)
    before = [*logger.filters]
    propagated = logger.propagate
    logger.disabled, disabled = False, logger.disabled  # Hydra disables those that it does not know
    logger.addHandler(caplog.handler)  # whatever became of the loggers above it
    level, logger.propagate = logger.level, False
    logger.setLevel(logging.WARNING)  # which forgets what the logger remembers of levels, as its attribute does not
    try:
        drop_expected()
        logger.warning(f"{EXPECTED[name]}, and so on")
        logger.warning("another")
    finally:
        logger.removeHandler(caplog.handler)
        logger.filters, logger.propagate, logger.disabled = before, propagated, disabled
        logger.setLevel(level)
    assert caplog.messages == ["another"]
