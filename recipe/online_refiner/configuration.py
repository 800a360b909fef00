"""docs/configuration.md, from the fields of the config's blocks: `python -m recipe.online_refiner.configuration`."""

import ast
import inspect
import textwrap
from pathlib import Path

from recipe.online_refiner import blocks
from refiner_worker import config

DEFAULTS = Path(__file__).parent / "config" / "refinement" / "online.yaml"
PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
BLOCKS = {
    "constraint": blocks.ConstraintConfig,
    "refiner": config.RefinerConfig,
    "records": blocks.RecordsConfig,
}
HEAD = """\
# Every key of this extension

For whom the eight keys of the README are not enough. Written by `python -m recipe.online_refiner.configuration` from
the doc strings of [blocks.py](../recipe/online_refiner/blocks.py) and
[refiner_worker/config.py](../refiner_worker/config.py), and the defaults of
[online.yaml](../recipe/online_refiner/config/refinement/online.yaml); a test says when it is stale.

All other keys are verl's own, and any can be set behind a preset. `dry_run=true` checks a config with its models and
data, prints who runs where, and exits; a mistake is one line that says what to set, before Ray starts. What the keys of
`constraint` do to the gradient: [constraint.md](constraint.md); where the refiner lives and what it costs:
[hosting.md](hosting.md).

| key of the run | meaning | default |
|---|---|---|
| `experiment` | a preset of [config/experiment](../recipe/online_refiner/config/experiment) | none |
| `neighbour` | another method on the same refinements: [neighbours.md](neighbours.md) | none |
| `twin` | `cpu` or `cpu_megatron`: the small twin of a preset, on this machine | none |
| `platform` | `gpu`, `cpu` or `cpu_megatron` | `gpu` |
| `run_dir` | where everything of a run is written: [running.md](running.md) | `runs/PROJECT/EXPERIMENT` |
| `console` | `log`: verl's output; `progress`: a bar, a line for each step, and a summary | `log` |
| `dry_run` | check, print the plan and exit | false |
"""


def meanings(block: type) -> dict[str, str]:
    """Return the sentence of each field of a dataclass: the string that stands below it."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(block))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = " ".join(str(text.value.value).split()).replace("``", "`").replace("|", r"\|")
    return found


def defaults() -> dict[str, dict[str, str]]:
    """Return the default of each key as it is written, and what is said behind it."""
    found: dict[str, dict[str, str]] = {}
    for line in DEFAULTS.read_text(encoding="utf-8").splitlines():
        if line[:1].isalpha() and line.endswith(":"):
            found[line[:-1]] = current = {}
        elif line.startswith("  "):
            key, _, value = line.strip().partition(": ")
            value, _, comment = value.partition(" # ")
            current[key] = f"`{value}`" + (f" ({comment})" if comment else "")
    return found


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for name, block in BLOCKS.items():
        rows = [f"| `{name}.{key}` | {text} | {defaults()[name][key]} |" for key, text in meanings(block).items()]
        parts.append("\n".join([f"## `{name}`", "", "| key | meaning | default |", "|---|---|---|", *rows, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
