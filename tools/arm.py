"""Runs tests as 64-bit ARM code on a Debian of another processor: cross compiled, under QEMU.

    python tools/arm.py FOLDER [--levels neon,dotprod,i8mm] [-- pytest arguments]

Makes in FOLDER; a second run takes the root as it is, and compiles what changed:

1. root: Debian's Python and C++ library for ARM, unpacked and not installed.
2. wheels: tamiz, and tamiz-ops as `ort_ops/cmake/aarch64.cmake` compiles it.
3. venv: an environment of that Python with both, and what they need as wheels for ARM.

Then it runs the native tests, of `tests/ops` each twentieth test on a processor of each level, and
of a tiny model's whole way as many. TAMIZ_EVERY=1 runs all of them, which takes hours. With pytest
arguments it runs those on each level instead.

Needs Debian's packages in `PROGRAMS`, which it installs where it may. Where something cannot be had
it says so in its last line, `arm: SKIPPED: …`, and exits with 0: it is a check for developers, and
a Debian that has all of it never skips.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
#: Programs, and the Debian packages that hold them.
PROGRAMS = {
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "qemu-aarch64-static": "qemu-user-static",
}
#: A processor of each level, as QEMU names it: an instruction of a higher level ends the program.
#: Without SVE, which NumPy's OpenBLAS takes where it can: in QEMU 7.2's vectors of 2,048 bits its
#: float32 products are wrong.
PROCESSORS = {"neon": "cortex-a72", "dotprod": "neoverse-n1", "i8mm": "max,sve=off"}
#: Export, build, run and batch of tiny models, by commands and from Python.
WHOLE_WAY = (
    "tests/cli/test_run_commands.py",
    "tests/inference/test_language_model.py",
    "tests/runtime/test_generate.py",
    "tests/building/test_build.py",
)
#: Of tests of the levels and of the whole way each twentieth runs.
EVERY = "20"
#: The newest glibc whose wheels are taken: manylinux_2_17 up to this one.
GLIBC = 36
#: ONNX Runtime reads what Linux says of the processor; that of this machine is no ARM.
CPUINFO = """\
processor\t: {}
Features\t: fp asimd
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""
INTERPRETER = """\
#!/bin/sh
exec {qemu} -0 "$0" -L {root} {root}/usr/bin/{python} "$@"
"""


class Unavailable(Exception):
    """What the tests need cannot be had on this machine."""


def run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    """Prints a command and runs it in the root of the repository.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    print("$", *command, flush=True)
    subprocess.run(command, check=True, cwd=ROOT, env=os.environ | (env or {}))


def require(*command: str | Path, reason: str) -> None:
    """Runs a command without which there is nothing to test.

    Raises:
        Unavailable: It failed.
    """
    try:
        run(*command)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Unavailable(f"{reason} ({error})") from error


def install_programs() -> None:
    """Installs the compiler and the emulator where they are missing."""
    if platform.machine() == "aarch64":
        raise Unavailable("this processor is an ARM already: run `tox -e ops`")
    missing = sorted({package for name, package in PROGRAMS.items() if not shutil.which(name)})
    if not missing:
        return
    wanted = f"apt-get install {' '.join(missing)}"
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise Unavailable(f"the compiler or the emulator is missing; as root: {wanted}")
    require("apt-get", "update", reason="Debian's lists of packages cannot be read")
    install = ("apt-get", "install", "-y", "--no-install-recommends", *missing)
    require(*install, reason=f"not installed: {wanted}")


def make_root(folder: Path) -> Path:
    """Unpacks Debian's Python for ARM. This system's own packages stay as they are."""
    root = folder / "root"
    if (root / "usr" / "bin" / PYTHON).exists():
        return root
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / "apt" / name).mkdir(parents=True, exist_ok=True)
    (folder / "apt" / "status").touch()
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "",
        "Debug::NoLocking": "1",
        "Dir::Cache": folder / "apt" / "cache",
        "Dir::State::lists": folder / "apt" / "lists",
        "Dir::State::status": folder / "apt" / "status",
    }
    apt = ("apt-get", "-qq", *(f"-o{key}={value}" for key, value in options.items()))
    reason = f"this system's sources have no {PYTHON} for arm64; run with Debian's own Python"
    require(*apt, "update", reason=reason)
    install = (*apt, "install", "--yes", "--no-install-recommends", "--download-only")
    require(*install, PYTHON, "libstdc++6", reason=reason)
    # Without the headers of other libraries that it depends on, which would hide the compiler's.
    headers = folder / "headers"
    headers.mkdir(exist_ok=True)
    command = f'cd "$0" && exec "$@" download lib{PYTHON}-dev'
    require("sh", "-c", command, headers, *apt, reason=reason)
    unpacked = folder / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    (unpacked / "usr" / "lib").mkdir(parents=True)
    (unpacked / "lib").symlink_to("usr/lib")
    for package in (*(folder / "apt" / "cache" / "archives").glob("*.deb"), *headers.glob("*.deb")):
        command = 'dpkg-deb --fsys-tarfile "$0" | tar -x --keep-directory-symlink -C "$1"'
        run("sh", "-c", command, package, unpacked)
    (unpacked / "proc").mkdir()
    cpuinfo = "".join(CPUINFO.format(number) for number in range(os.cpu_count() or 1))
    (unpacked / "proc" / "cpuinfo").write_text(cpuinfo, "utf-8")
    return unpacked.rename(root)


def make_wheels(folder: Path, root: Path) -> Path:
    """Builds both wheels, and the native tests beside that of tamiz-ops."""
    wheels = folder / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels)
    run(*pip, ROOT)
    include = root / "usr" / "include"
    suffix = f".cpython-{PYTHON[6:].replace('.', '')}-aarch64-linux-gnu.so"
    defines = {
        "CMAKE_TOOLCHAIN_FILE": ROOT / "ort_ops" / "cmake" / "aarch64.cmake",
        "CMAKE_CXX_FLAGS": f"-isystem {include}",
        "PYBIND11_FINDPYTHON": "ON",
        "PYBIND11_USE_CROSSCOMPILING": "ON",  # asks no interpreter of this machine
        "PYTHON_IS_DEBUG": "OFF",
        "PYTHON_MODULE_DEBUG_POSTFIX": "",
        "PYTHON_MODULE_EXTENSION": suffix,
        "Python_INCLUDE_DIR": include / PYTHON,
        "TAMIZ_TESTS": "ON",
    }
    build = folder / "build"
    settings = [f"-Ccmake.define.{key}={value}" for key, value in defines.items()]
    targets = ("all", "native_tests")
    settings += [f"-Cbuild-dir={build}", *(f"-Cbuild.targets={name}" for name in targets)]
    env = {
        "CMAKE_BUILD_PARALLEL_LEVEL": os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "2"),
        "SETUPTOOLS_EXT_SUFFIX": suffix,
        "_PYTHON_HOST_PLATFORM": "linux-aarch64",
    }
    # Not isolated: for _PYTHON_HOST_PLATFORM pip would fetch a CMake that runs on ARM only.
    run(*pip, "--no-build-isolation", *settings, ROOT / "ort_ops", env=env)
    return wheels


def make_environment(folder: Path, root: Path, wheels: Path) -> Path:
    """Installs the wheels and what they need; returns the interpreter."""
    venv = folder / "venv"
    shutil.rmtree(venv, ignore_errors=True)
    packages = venv / "lib" / PYTHON / "site-packages"
    platforms = [f"manylinux_2_{minor}_aarch64" for minor in range(GLIBC, 16, -1)]
    platforms += ["manylinux2014_aarch64", "linux_aarch64"]
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", packages)
    only = ("--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON[6:]}")
    own = (f"--find-links={wheels}", "tamiz[test]")
    run(*pip, *only, *(f"--platform={name}" for name in platforms), *own)
    python = venv / "bin" / "python"
    python.parent.mkdir(exist_ok=True)
    qemu = shutil.which("qemu-aarch64-static")
    python.write_text(INTERPRETER.format(qemu=qemu, root=root, python=PYTHON), "utf-8")
    python.chmod(0o755)
    (venv / "pyvenv.cfg").write_text(f"home = {root}/usr/bin\n", "utf-8")
    return python


def run_tests(python: Path, level: str, arguments: list[str]) -> bool:
    """Runs pytest on a processor of a level and then prints its output; whether all tests pass."""
    env = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "PATH": str(python.parent),  # whose programs are ARM's: others compile for this machine
        "PYTHONPATH": "",
        "QEMU_CPU": PROCESSORS[level],
    }
    best = "import sys, tamiz_ops; sys.exit(tamiz_ops.cpu()['isa'] != sys.argv[1])"
    commands = (
        [str(python), "-c", best, level],
        [str(python), "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments],
    )
    for command in commands:
        print("$", *command, flush=True)
        begin = time.monotonic()
        done = subprocess.run(
            command, check=False, cwd=ROOT, env=env, text=True, encoding="utf-8",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        took = f"{level}: exit code {done.returncode}, {time.monotonic() - begin:.0f} s"
        print(f"{done.stdout}{took}", flush=True)
        if done.returncode != 0:
            return False
    return True


def run_together(python: Path, runs: dict[str, tuple[str, list[str]]]) -> list[str]:
    """Runs pytest with a level and arguments for each name, as many at a time as there are cores.

    Returns:
        The names of those in which a test failed.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        passed = {name: pool.submit(run_tests, python, *run) for name, run in runs.items()}
    return [name for name, future in passed.items() if not future.result()]


def run_all(folder: Path, levels: list[str], arguments: list[str]) -> list[str]:
    """Builds and tests; returns the names of what failed."""
    install_programs()
    root = make_root(folder)
    wheels = make_wheels(folder, root)
    python = make_environment(folder, root, wheels)
    if arguments:
        return run_together(python, {level: (level, arguments) for level in levels})
    failed = []
    try:
        run("ctest", "--test-dir", folder / "build", "--output-on-failure")
    except subprocess.CalledProcessError:
        failed.append("native tests")
    os.environ.setdefault("TAMIZ_EVERY", EVERY)  # tests/conftest.py
    runs = {}
    for level in levels:
        # Each processor also has the lower levels, which the test of a lower one runs.
        others = " or ".join({"scalar", *PROCESSORS} - {level, "scalar" if level == "neon" else ""})
        runs[f"tests/ops on {level}"] = (level, ["tests/ops", "-k", f"not ({others})"])
    runs["the whole way"] = ("i8mm", list(WHOLE_WAY))
    return failed + run_together(python, runs)


def main() -> None:
    """Parses the arguments, tests, and says what failed or why nothing was tested."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="working folder, kept for the next run")
    parser.add_argument("--levels", default=",".join(PROCESSORS), help="levels, with commas")
    parser.epilog = "After --: arguments of pytest, which is run on each level with nothing else."
    arguments = [*sys.argv[1:], "--"]
    end = arguments.index("--")
    given = parser.parse_args(arguments[:end])
    levels = given.levels.split(",")
    if unknown := set(levels) - set(PROCESSORS):
        parser.error(f"--levels: found {', '.join(unknown)}, expected {', '.join(PROCESSORS)}")
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        failed = run_all(folder, levels, arguments[end + 1 : -1])
    except Unavailable as error:
        print(f"arm: SKIPPED: {error}")
        return
    if failed:
        sys.exit(f"arm: FAILED: {'; '.join(failed)}")
    print("arm: passed")


if __name__ == "__main__":
    main()
