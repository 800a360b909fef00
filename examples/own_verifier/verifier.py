"""A reward of one's own: the response is a JSON object with the asked keys. What `feedback` says, the refiner reads."""

import json


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict | None = None) -> dict:
    """Return the share of the keys that are there, and in words what is wrong."""
    wanted = ground_truth.split(",")
    try:
        found = json.loads(solution_str.strip().removeprefix("```json").removesuffix("```"))
        if not isinstance(found, dict):  # the keys may be in a list or a text as well
            raise TypeError(f"it is a {type(found).__name__}")
    except (ValueError, TypeError, RecursionError) as error:  # the last of brackets in brackets, a thousand deep
        return {"score": -1.0, "feedback": f"This is no JSON object: {error}"}
    missing = [key for key in wanted if key not in found]
    feedback = f"The keys {', '.join(missing)} are missing." if missing else ""
    return {"score": 1 - len(missing) / len(wanted), "feedback": feedback}


def validate_row(row: dict, *, limits: dict | None = None) -> None:
    """Raise ValueError for a row that cannot be rewarded; called for every row before the run starts."""
    text = row["reward_model"]["ground_truth"]
    if not all(text.split(",")):
        raise ValueError(f"ground_truth is {text!r}; write keys with commas between them")


def write_data(file: str) -> None:
    """Write prompts in verl's columns."""
    import pandas

    names = ["name", "age", "city", "colour", "price", "size"]
    keys = [f"{one},{other}" for one in names for other in names if one != other]
    rows = [
        {
            "data_source": "json_keys",
            "prompt": [{"role": "user", "content": f"Write a JSON object with the keys {text}. Nothing else."}],
            "reward_model": {"style": "rule", "ground_truth": text},
        }
        for text in keys
    ]
    pandas.DataFrame(rows).to_parquet(file)


if __name__ == "__main__":
    import sys

    write_data(sys.argv[1])
