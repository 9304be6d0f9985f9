import ctypes
import shutil
import subprocess
import sys

import numpy as np
import onnxruntime as ort
import pytest

import tamiz_ops
from kit.ops_graphs import model, node, session

X = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)
SWIGLU = model([node("SwiGLU", ["x", "x"], ["y"])], ["x"], ["y"])


def test_bare_onnxruntime_loads_the_library() -> None:
    options = ort.SessionOptions()
    options.register_custom_ops_library(tamiz_ops.library_path())
    (y,) = ort.InferenceSession(SWIGLU, options).run(None, {"x": X})
    np.testing.assert_array_equal(y, tamiz_ops.run("SwiGLU", [X, X])[0])


def test_registering_twice_and_sharing_options() -> None:
    options = ort.SessionOptions()
    tamiz_ops.register(options)
    tamiz_ops.register(options)
    first, second = (ort.InferenceSession(SWIGLU, options) for _ in range(2))
    del first
    (y,) = second.run(None, {"x": X})
    np.testing.assert_array_equal(y, tamiz_ops.run("SwiGLU", [X, X])[0])


@pytest.mark.parametrize("isa", tamiz_ops.cpu()["isas"])
def test_environment_forces_the_instruction_set(isa, monkeypatch) -> None:
    monkeypatch.setenv("TAMIZ_ISA", isa)
    assert tamiz_ops.cpu()["isa"] == isa
    (y,) = session(SWIGLU).run(None, {"x": X})
    np.testing.assert_array_equal(y, tamiz_ops.run("SwiGLU", [X, X], isa=isa)[0])


def test_unknown_instruction_set_is_told_at_registration(monkeypatch) -> None:
    monkeypatch.setenv("TAMIZ_ISA", "sse9")
    with pytest.raises(Exception, match=r"TAMIZ_ISA is 'sse9', expected one of: .*scalar\.$"):
        tamiz_ops.register(ort.SessionOptions())


def test_the_best_instruction_set_is_chosen(monkeypatch) -> None:
    monkeypatch.delenv("TAMIZ_ISA", raising=False)
    cpu = tamiz_ops.cpu()
    assert cpu["isa"] == cpu["isas"][0]
    assert cpu["isas"][-1] == "scalar"


@pytest.mark.parametrize("newest", [16, 19])
def test_an_old_onnxruntime_is_told_so(newest) -> None:
    """GetApi is null for what is newer than the host's own API: 1.19 has 19."""
    create_status_type = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    get_api_type = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
    messages = []

    def create_status(code, message) -> int:
        messages.append((code, message.decode()))
        return 1

    create = create_status_type(create_status)
    api = (ctypes.c_void_p * 3)(ctypes.cast(create, ctypes.c_void_p))
    get_api = get_api_type(lambda version: ctypes.addressof(api) if version <= newest else None)
    base = (ctypes.c_void_p * 2)(ctypes.cast(get_api, ctypes.c_void_p))
    register = ctypes.CDLL(tamiz_ops.library_path()).RegisterCustomOps
    register.restype = ctypes.c_void_p
    assert register(None, ctypes.byref(base)) == 1
    assert messages == [(1, "tamiz_ops needs ONNX Runtime 1.20 or newer.")]


def test_a_host_without_python_loads_the_library(tmp_path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler here to build a host without Python")
    source = tmp_path / "host.c"
    source.write_text(
        "#include <dlfcn.h>\n"
        "int main(int argc, char** argv) {\n"
        "  void* library = dlopen(argv[argc - 1], RTLD_NOW | RTLD_LOCAL);\n"
        '  return library && dlsym(library, "RegisterCustomOps") ? 0 : 1;\n'
        "}\n"
    )
    host = tmp_path / "host"
    subprocess.run([compiler, str(source), "-o", str(host), "-ldl"], check=True)
    subprocess.run([str(host), tamiz_ops.library_path()], check=True)


def test_schemas_describe_every_op_and_port() -> None:
    schemas = tamiz_ops.schemas()
    assert {"RMSNorm", "SwiGLU", "Attention", "Fused"} <= set(schemas)
    for schema in schemas.values():
        assert schema["doc"].endswith(".")
        ports = schema["inputs"] + schema["outputs"]
        assert all(part["doc"] for part in ports + schema["attributes"] + schema["metrics"])
    epsilon = schemas["RMSNorm"]["attributes"][0]
    assert epsilon["name"] == "epsilon"
    assert epsilon["default"] == pytest.approx(1e-5)


def test_ports_are_numbered_as_declared() -> None:
    for op, schema in tamiz_ops.schemas().items():
        ports = tamiz_ops.ports(op)
        assert list(ports.inputs) == [port["name"] for port in schema["inputs"]]
        assert list(ports.outputs) == [port["name"] for port in schema["outputs"]]
        assert list(ports.inputs.values()) == list(range(len(ports.inputs)))
    attention = tamiz_ops.ports("Attention")
    assert attention.inputs["past_key"] == 3
    assert attention.outputs["present_sketch"] == 3


def test_op_metrics_are_those_of_the_declaration() -> None:
    (kept, *_) = tamiz_ops.op_metrics("KwtaMask")
    assert (kept.name, kept.unit) == ("kwta.kept", "blocks")
    assert kept.description


def test_ports_of_an_unknown_op() -> None:
    with pytest.raises(ValueError, match="no op of the tamiz domain is named 'Attn': BlockMatMul"):
        tamiz_ops.ports("Attn")
