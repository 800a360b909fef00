"""Imported by a critic's workers (``critic.model.external_lib``): verl loads critics with the attention they name."""

from recipe.cpu_platform.patches import load_critics_by_their_config

load_critics_by_their_config()
