"""The command that prepares data, in this process: its packages take a second to import."""

import contextlib
import io
from subprocess import CompletedProcess

from recipe.data_preparation.command import main


def prepared(*arguments: str) -> CompletedProcess[str]:
    """Run it with arguments, and return what it printed and its exit status."""
    with contextlib.redirect_stdout(io.StringIO()) as stdout, contextlib.redirect_stderr(io.StringIO()) as stderr:
        try:
            status = main(arguments)
        except SystemExit as end:  # of argparse
            status = end.code
    return CompletedProcess(arguments, status, stdout.getvalue(), stderr.getvalue())
