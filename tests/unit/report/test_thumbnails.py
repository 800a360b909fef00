"""Small copies of images: small, by the name of their pixels, and read from their folder alone."""

from pathlib import Path

from PIL import Image

from recipe.runs.thumbnails import MAX_BYTES, SIDE, Thumbnails


def test_an_image_is_kept_once_and_small(tmp_path: Path) -> None:
    kept = Thumbnails(f"{tmp_path}/images")
    noise = Image.effect_noise((1500, 1000), 100).convert("RGB")  # which compresses worst
    name = kept.keep(noise)
    assert name == kept.keep(noise.copy()) == Thumbnails(f"{tmp_path}/images").keep(noise)
    (file,) = (tmp_path / "images").iterdir()
    assert file.name == f"{name}.jpg" and file.stat().st_size <= MAX_BYTES
    assert max(Image.open(file).size) == SIDE and kept.read(name) == file.read_bytes()
    other = noise.copy()
    other.putpixel((0, 0), (1, 2, 3))
    assert kept.keep(other) != name
    assert kept.keep(Image.new("L", (2, 8))) != kept.keep(Image.new("L", (8, 2))), "the same bytes in another shape"


def test_only_small_copies_are_read(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    (tmp_path / "images" / f"{'a' * 16}.jpg").write_bytes(b"x" * (MAX_BYTES + 1))
    kept = Thumbnails(f"{tmp_path}/images")
    assert [kept.read(name) for name in ("../secret", "a" * 16, "b" * 16)] == [None] * 3
