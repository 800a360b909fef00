"""The error message for an unwritable cache of the package datasets, whose own error names only an inner file."""

import os
import tempfile


def wrong_with_cache() -> str | None:
    """Return what is wrong with the folders that datasets writes to and what to set, or None."""
    import datasets
    from huggingface_hub import constants

    for key, folder in (
        ("HF_DATASETS_CACHE", datasets.config.HF_DATASETS_CACHE),
        ("HF_HUB_CACHE", constants.HF_HUB_CACHE),
    ):
        try:
            os.makedirs(folder, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"0" * 4096)
        except OSError as error:
            said = f"the cache {folder} cannot be written ({error.strerror})"
            return f"{said}: set {key} or HF_HOME to a folder that can, as in HF_HOME=/tmp/huggingface"
    return None
