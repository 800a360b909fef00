"""Run directories as training writes them, with numbers and texts made up here."""

import json
import math
import random
import re
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
STAGES = {
    **{
        "gen": 14,
        "reward": 1,
        "refine": 11,
        "kl_ref": 4,
        "old_log_prob": 3,
        "refine_log_prob": 2,
        "ref": 3,
        "values": 2,
    },
    **{"update_critic": 8, "update_actor": 28, "update_weights": 1, "testing": 2, "save_checkpoint": 1},
}
TOKENS = {"rollout": 690, "refine_prompt": 2300, "refine": 540, "refine_log_prob": 210, "kl_ref": 690}
RARE_VERDICTS = ("empty", "timeout", "request", "reward", "not_chosen", "too_long")
RESPONSES = (
    ("def {f}(x):\n    returning x + {n}\n\n{f}({n})", "def {f}(x):\n    return x + {n}"),
    ("def {f}(x):\n    # add the numbers\n    y = x - {n}\n    return y", "def {f}(x):\n    y = x + {n}\n    return y"),
    ("The function adds {n} to x, so the answer is x{n}.", "def {f}(x):\n    return x + {n}"),
)


def metrics_of(step: int, *, arm: int, refines: bool, draw: random.Random) -> dict[str, Any]:
    gain = 1 - math.exp(-step / (8 + 2 * arm))
    accepted = round(16 * (0.4 - 0.03 * arm) * math.exp(-step / 15) + draw.random()) if refines else 0
    cross_entropy = 2.2 * math.exp(-step / 20) + 0.2 * draw.random()
    return {
        "step": step,
        "reward/mean": -0.6 + (1.3 - 0.12 * arm) * gain + 0.08 * draw.gauss(0, 1),
        "reward/group_std": 0.5 * math.exp(-step / 30) + 0.05 * draw.random(),
        "kl_ref/k3": 0.02 * (1 + arm) * gain + 0.004 * draw.random(),
        "refiner/num_attempted": 12 if refines else 0,
        "refiner/num_accepted": accepted,
        "refiner/improvement_ratio": accepted / 16,
        "constraint/cross_entropy_all": cross_entropy if refines else 0.0,
        "constraint/cross_entropy_accepted": cross_entropy * 1.2 if accepted else 0.0,
        "constraint/divergence": accepted * cross_entropy * 2,
        "constraint/penalty": -1e-4 * accepted * cross_entropy,
        "constraint/eta": 1e-3 if refines else 0.0,
        **{f"timing_s/{name}": mean * (0.9 + 0.2 * draw.random()) for name, mean in STAGES.items()},
        "timing_s/step": 92.0,
        **{f"tokens/{name}": mean for name, mean in TOKENS.items()},
        **({"val-core/mini_apps/acc/mean@1": 0.1 + 0.6 * gain} if step % 5 == 0 else {}),
    }


def row_of(step: int, place: int, hostile: str, draw: random.Random) -> dict[str, Any]:
    verdict = draw.choice(("accepted", "not_better", "truncated", "max_reward") * 8 + RARE_VERDICTS)
    function, number = f"add_{draw.randint(2, 30)}", draw.randint(2, 30)
    response, refined = (text.format(f=function, n=number) for text in draw.choice(RESPONSES))
    scored = verdict in ("accepted", "not_better")
    reward = 1.0 if verdict == "max_reward" else draw.choice((-1.0, -0.6, -0.3))
    return {
        **{"step": step, "key": f"{function}_{step}_{place}", "verdict": verdict, "reward": reward},
        "prompt": [{"role": "user", "content": f"Write a function `{function}(x)` that returns x plus {number}."}],
        "response": f"```python\n{response}\n```{hostile}",
        "refined": f"```python\n{refined}\n```{hostile}" if scored else None,
        "refined_reward": {"accepted": 1.0, "not_better": reward}.get(verdict),
        "detail": f"```python\n{refined[:20]}{hostile}" if verdict == "truncated" else "",
    }


def tokens_of(text: str, draw: random.Random) -> list[list[Any]]:
    return [[token, round(-draw.expovariate(1.2), 4)] for token in re.findall(r" ?\w+|\s+|[^\w\s]", text)]


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Path]:
    """Return a function that writes a run directory: arms differ in eta, runs of an arm in the seed alone."""

    def make(path: Path, *, arm: int = 0, seed: int = 1, num_steps: int = 40, hostile: bool = False) -> Path:
        refines, draw = arm != 1, random.Random(f"{arm} {seed}")
        path.mkdir(parents=True)
        config = {
            "data": {"seed": seed},
            "constraint": {"mode": "penalty" if refines else "none", "eta": 10.0 ** -(2 + arm)},
            "trainer": {"experiment_name": "apps_dapo" if refines else "apps_dapo_none"},
            "run_dir": str(path),
        }
        files: dict[str, list[dict[str, Any]]] = {"metrics": [], "refinements": [], "tokens": []}
        for step in range(1, num_steps + 1):
            files["metrics"].append(metrics_of(step, arm=arm, refines=refines, draw=draw))
            if refines:
                texts = [HOSTILE[(step + place) % len(HOSTILE)] if hostile else "" for place in range(16)]
                rows = [row_of(step, place, text, draw) for place, text in enumerate(texts)]
                files["refinements"] += rows
                for row in [row for row in rows if row["verdict"] == "accepted"][:2]:
                    pair = {side: tokens_of(row[side], draw) for side in ("response", "refined")}
                    files["tokens"].append({"step": step, "key": row["key"], **pair})
        (path / "config.yaml").write_text(json.dumps(config))  # JSON is YAML as well
        for name, rows in files.items():
            if rows:
                (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return make
