"""Run directories as training writes them, with numbers and texts made up here."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HOSTILE = (
    "</script><script>window.broken = 1</script x <!-- <script ",
    "<img src=x onerror='window.broken = 2'>",
    "</pre></td></table>--><!-- <style>body { display: none }</style>",
    "\x00\x1b[31m\x07\u202egnirts\u202c \ud800 lone \udfff {{ 7 * 7 }} $\\frac{1}$ \u2028",
    "javascript:window.broken=3 &lt;b&gt; ' \" ` ${window.broken = 4}",
)
RESPONSES = (
    ("def {f}(x):\n    returning x + {n}\n\n{f}({n})", "def {f}(x):\n    return x + {n}"),
    ("The function adds {n} to x, so the answer is x{n}.", "def {f}(x):\n    return x + {n}"),
)


def row_of(step: int, place: int, hostile: str, draw: random.Random) -> dict[str, Any]:
    verdict = draw.choice(("accepted", "not_better", "truncated", "max_reward", "timeout"))
    function, number = f"add_{draw.randint(2, 30)}", draw.randint(2, 30)
    response, refined = (text.format(f=function, n=number) for text in draw.choice(RESPONSES))
    reward = draw.choice((-1.0, -0.6, -0.3))
    return {
        **{"step": step, "key": f"{function}_{step}_{place}", "verdict": verdict, "reward": reward},
        "prompt": [{"role": "user", "content": f"Write a function `{function}(x)` that returns x plus {number}."}],
        "response": f"```python\n{response}\n```{hostile}",
        "refined": f"```python\n{refined}\n```{hostile}" if verdict in ("accepted", "not_better") else None,
        "refined_reward": {"accepted": 1.0, "not_better": reward}.get(verdict),
        "detail": f"```python\n{refined[:20]}{hostile}" if verdict == "truncated" else "",
    }


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Path]:
    """Return a function that writes a run directory: arms differ in eta, runs of an arm in the seed alone."""

    def make(path: Path, *, arm: int = 0, seed: int = 1, num_steps: int = 40, hostile: bool = False) -> Path:
        draw = random.Random(f"{arm} {seed}")
        path.mkdir(parents=True)
        constraint = {"mode": "penalty", "eta": 10.0 ** -(2 + arm)} if arm != 1 else {"mode": "none"}
        config = {"data": {"seed": seed}, "constraint": constraint, "trainer": {"experiment_name": "apps_dapo"}}
        (path / "config.yaml").write_text(json.dumps({**config, "run_dir": str(path)}))  # JSON is YAML as well
        steps = range(1, num_steps + 1)
        metrics = [
            {
                **{"step": step, "reward/mean": step / 40 + draw.random(), "kl_ref/k3": 0.01, "timing_s/step": 92.0},
                **{"refiner/num_attempted": 12 * (arm != 1), "refiner/improvement_ratio": draw.random()},
                **{"constraint/cross_entropy_accepted": float(arm != 1), "constraint/penalty": -1e-4 * (arm != 1)},
                **({"val-core/mini_apps/acc/mean@1": draw.random()} if step % 5 == 0 else {}),
            }
            for step in steps
        ]
        refinements = [
            row_of(step, place, HOSTILE[(step + place) % len(HOSTILE)] if hostile else "", draw)
            for step in (steps if arm != 1 else ())
            for place in range(16)
        ]
        (path / "refinements").mkdir()
        for name, rows in (("metrics", metrics), ("refinements/000001.w0", refinements)):
            (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return make
