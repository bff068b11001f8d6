# SPDX-License-Identifier: Apache-2.0
"""Bundles of tiny wheels from a local folder: for another machine, in parts, installed offline."""

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from comet.bundle import LOCK, SUMS, bundle
from comet.bundle.target import Target
from comet.bundle.wheels import read_pins
from comet.cli import main
from comet.errors import UserError

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


def write_wheel(folder: Path, name: str, version: str, tag: str = "py3-none-any", needs=()) -> Path:
    """A wheel with one module that says its version."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    needed = "".join(f"Requires-Dist: {text}\n" for text in needs)
    files = {
        f"{name}.py": f'VERSION = "{version}"\n' + "# padding\n" * 200,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    rows = [f"{info}/RECORD,,"]
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        rows.append(f"{path},sha256={digest.decode()},{len(text)}")
    files[f"{info}/RECORD"] = "\n".join(rows) + "\n"
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, text in files.items():
            wheel.writestr(member, text)
    return path


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """A folder of wheels in place of the network: for several machines, with dependencies."""
    folder = tmp_path / "index"
    write_wheel(
        folder,
        "apple",
        "1.0",
        needs=[
            "pear[ripe]<3",
            "plum; python_version < '3.9'",
            "grape; sys_platform == 'win32'",
        ],
    )
    write_wheel(folder, "pear", "2.5", needs=["quince>=1; extra == 'ripe'", "fig; extra == 'raw'"])
    write_wheel(folder, "pear", "3.0")
    write_wheel(folder, "quince", "1.2")
    for tag in ("cp310-cp310-manylinux_2_17_x86_64", "cp39-abi3-manylinux2014_aarch64"):
        write_wheel(folder, "medlar", "4.0", tag=tag)
    write_wheel(folder, "medlar", "4.0", tag="cp310-cp310-manylinux_2_35_x86_64")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def pins(folder: Path, *lines: str) -> Path:
    path = folder / "pins.txt"
    path.write_text("# pins\n" + "\n".join(lines) + "\n-e .\n", encoding="utf-8")
    return path


def lock_of(folder: Path) -> list[str]:
    """Names and versions of a bundle's wheels, read from its joined parts."""
    joined = b"".join(part.read_bytes() for part in sorted(folder.glob("wheels.tar.*")))
    done = subprocess.run(["tar", "-xO", "-f", "-", LOCK], input=joined, capture_output=True)
    assert done.returncode == 0, done.stderr
    return [line.split(" ")[0] for line in done.stdout.decode().splitlines()]


def install(folder: Path, venv: Path) -> subprocess.CompletedProcess:
    """Run the installer where pip has neither a network nor the folder of the bundling machine."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    return subprocess.run(
        ["sh", str(folder / "install.sh"), str(venv), sys.executable],
        capture_output=True,
        text=True,
        env=plain | {"PIP_CONFIG_FILE": os.devnull},
        check=False,
    )


def test_dependencies_without_a_pin_come_along(index, tmp_path):
    made = bundle(pins(tmp_path, "apple==1.0"), tmp_path / "out", Target(HERE), 10**6)
    assert made["wheels"] == 3
    assert lock_of(tmp_path / "out") == ["apple==1.0", "pear==2.5", "quince==1.2"]


@pytest.mark.parametrize(
    ("target", "chosen"),
    [
        (Target("3.10", "2.28"), "cp310-cp310-manylinux_2_17_x86_64"),
        (Target("3.10", "2.35"), "cp310-cp310-manylinux_2_35_x86_64"),
        (Target("3.12", "2.28", "aarch64"), "cp39-abi3-manylinux2014_aarch64"),
    ],
    ids=["old C library", "new C library", "another processor and Python"],
)
def test_wheels_are_for_the_machine_that_was_asked_for(index, tmp_path, target, chosen):
    bundle(pins(tmp_path, "medlar==4.0"), tmp_path / "out", target, 10**6)
    assert chosen.encode() in (tmp_path / "out" / "wheels.tar.000").read_bytes()


def test_a_pin_without_a_wheel_for_the_machine(index, tmp_path):
    with pytest.raises(UserError, match=r"Python 3.11: No matching distribution found for medlar"):
        bundle(pins(tmp_path, "medlar==4.0"), tmp_path / "out", Target("3.11"), 10**6)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*"))


def test_parts_are_joined_checked_and_installed(index, tmp_path):
    out = tmp_path / "out"
    made = bundle(pins(tmp_path, "apple==1.0"), out, Target(HERE), 5000)
    parts = sorted(out.glob("wheels.tar.*"))
    assert made["parts"] == len(parts) > 2
    assert all(part.stat().st_size == 5000 for part in parts[:-1])
    done = install(out, tmp_path / "venv")
    assert done.returncode == 0, done.stderr
    code = "import apple, pear, quince; print(apple.VERSION, pear.VERSION, quince.VERSION)"
    python = tmp_path / "venv" / "bin" / "python"
    shown = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["1.0", "2.5", "1.2"]


def test_a_damaged_or_missing_part_is_refused(index, tmp_path):
    out = tmp_path / "out"
    bundle(pins(tmp_path, "apple==1.0"), out, Target(HERE), 5000)
    second = out / "wheels.tar.001"
    whole = second.read_bytes()
    for bad in (whole[:-1] + b"x", None):
        second.unlink()
        if bad:
            second.write_bytes(bad)
        done = install(out, tmp_path / "venv")
        assert done.returncode == 1
        assert "a part is missing or damaged" in done.stderr
        assert not (tmp_path / "venv").exists()
        second.write_bytes(whole)


def test_a_wheel_that_was_exchanged_is_refused(index, tmp_path):
    out = tmp_path / "out"
    bundle(pins(tmp_path, "quince==1.2"), out, Target(HERE), 10**6)
    part = out / "wheels.tar.000"
    part.write_bytes(part.read_bytes().replace(b"padding", b"PADDING"))
    digest = hashlib.sha256(part.read_bytes()).hexdigest()
    (out / SUMS).write_text(f"{digest}  {part.name}\n", encoding="utf-8")
    done = install(out, tmp_path / "venv")
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


def test_equal_bundles_are_equal_and_replace_each_other(index, tmp_path):
    listed, out = pins(tmp_path, "quince==1.2"), tmp_path / "out"
    bundle(listed, out, Target(HERE), 10**6)
    first = (out / SUMS).read_bytes()
    bundle(listed, out, Target(HERE), 10**6)
    assert (out / SUMS).read_bytes() == first


def test_the_command(index, tmp_path, capsys):
    listed, out = pins(tmp_path, "quince==1.2"), tmp_path / "out"
    arguments = ["bundle", "--requirements", str(listed), "--out", str(out), "--python", "3.12"]
    assert main([*arguments, "--part-size", "1"]) == 0
    assert f"1 wheels in 1 parts: {out}" in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == [SUMS, "install.sh", "wheels.tar.000"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("apple>=1", "pins.txt:2 is no exact pin: apple>=1; write name==version"),
        ("apple==1.*", "no exact pin"),
        ("not a requirement", "pins.txt:2 is no requirement"),
    ],
)
def test_requirements_that_are_no_pins(tmp_path, line, message):
    with pytest.raises(UserError, match=message.replace("*", r"\*")):
        read_pins(pins(tmp_path, line))


def test_bad_arguments_are_one_line(index, tmp_path):
    listed = pins(tmp_path, "quince==1.2")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").touch()
    for message, call in {
        "other holds something that is no bundle": lambda: bundle(
            listed, tmp_path / "other", Target(HERE), 10
        ),
        "size of a part has to be positive": lambda: bundle(
            listed, tmp_path / "out", Target(HERE), 0
        ),
        "cannot read .*absent.txt": lambda: read_pins(tmp_path / "absent.txt"),
        "--python is '3'": lambda: Target("3"),
        "--glibc is '3.1'": lambda: Target("3.12", "3.1"),
        "--machine is 'mips'": lambda: Target("3.12", "2.28", "mips"),
    }.items():
        with pytest.raises(UserError, match=message):
            call()
    assert (tmp_path / "other" / "precious").exists()


@pytest.mark.net
def test_real_packages_for_another_python_and_one_that_is_source_only(tmp_path):
    listed = pins(tmp_path, "markupsafe==3.0.4", "word2number==1.1")
    made = bundle(listed, tmp_path / "out", Target("3.13", "2.28", "aarch64"), 10**6)
    assert made["wheels"] == 2
    content = (tmp_path / "out" / "wheels.tar.000").read_bytes()
    assert b"cp313-cp313-manylinux" in content and b"aarch64.whl" in content
    assert b"word2number-1.1-py3-none-any.whl" in content
