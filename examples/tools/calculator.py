"""A tool for verl's tool agent, and prompts that ask for it."""

from verl.tools.function_tool import function_tool


@function_tool
def multiply(a: int, b: int) -> str:
    """Multiply two whole numbers.

    Args:
        a: One.
        b: The other.
    """
    return str(a * b)


def write_data(file: str) -> None:
    """Write prompts in verl's columns; the tool's description comes from verl."""
    import pandas

    rows = [
        {
            "data_source": "products",
            "prompt": [
                {"role": "user", "content": f"What is {a} times {b}? Use the tool, then answer with #### NUMBER."}
            ],
            "reward_model": {"style": "rule", "ground_truth": str(a * b)},
        }
        for a in range(11, 19)
        for b in range(21, 29)
    ]
    pandas.DataFrame(rows).to_parquet(file)


if __name__ == "__main__":
    import sys

    write_data(sys.argv[1])
