"""Pictures of shapes that are to be counted: ``shapes.py FOLDER`` writes train.parquet and val.parquet."""

import io
import random
import re
import sys
from pathlib import Path

COLOURS = ("red", "green", "blue", "orange")
SHAPES = ("circles", "squares", "triangles")
SIZE, CELL = 224, 56
NUM_TRAIN, NUM_VAL = 160, 40


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict | None = None) -> dict:
    """Return 1 if the last number is the number of shapes, and in words what is wrong."""
    numbers = re.findall(r"\d+", solution_str)
    if not numbers:
        return {"score": -1.0, "feedback": "The answer has no number."}
    if numbers[-1].lstrip("0") == ground_truth:
        return {"score": 1.0, "feedback": ""}
    return {"score": 0.0, "feedback": f"{numbers[-1]:.20} is not the number of these shapes: count them again."}


def draw(rng: random.Random) -> tuple[bytes, str, int]:
    """Return a picture (PNG) with up to twelve shapes, the name of one kind of them, and how many there are."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (SIZE, SIZE), "white")
    pen = ImageDraw.Draw(image)
    cells = [(x, y) for x in range(0, SIZE, CELL) for y in range(0, SIZE, CELL)]
    found = [(place, rng.choice(COLOURS), rng.choice(SHAPES)) for place in rng.sample(cells, rng.randint(3, 12))]
    for (x, y), colour, shape in found:
        left, top, right, bottom = x + 8, y + 8, x + CELL - 8, y + CELL - 8
        if shape == "circles":
            pen.ellipse((left, top, right, bottom), fill=colour)
        elif shape == "squares":
            pen.rectangle((left, top, right, bottom), fill=colour)
        else:
            pen.polygon([(left, bottom), (right, bottom), ((left + right) // 2, top)], fill=colour)
    asked = rng.choice(found)[2]
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue(), asked, sum(shape == asked for _, _, shape in found)


def rows(number: int, seed: int) -> list[dict]:
    """Return rows in verl's columns: ``images`` has the pictures for which ``<image>`` stands in a prompt."""
    rng, made = random.Random(seed), []
    for index in range(number):
        picture, asked, count = draw(rng)
        question = f"<image>How many {asked} does the picture show? End with the number."
        made.append(
            {
                "data_source": "shapes",
                "prompt": [{"role": "user", "content": question}],
                "images": [{"bytes": picture}],
                "reward_model": {"style": "rule", "ground_truth": str(count)},
                "extra_info": {"index": index},
            }
        )
    return made


def write_data(folder: Path) -> None:
    """Write both files."""
    import pandas

    folder.mkdir(parents=True, exist_ok=True)
    pandas.DataFrame(rows(NUM_TRAIN, seed=0)).to_parquet(folder / "train.parquet")
    pandas.DataFrame(rows(NUM_VAL, seed=1)).to_parquet(folder / "val.parquet")


if __name__ == "__main__":
    write_data(Path(sys.argv[1]))
