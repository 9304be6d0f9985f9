import numpy as np
import pytest

import tamiz_ops
from kit.ops_graphs import model, node, session, value
from tamiz_ops import reference

X = np.random.default_rng(0).standard_normal((3, 5, 8)).astype(np.float32)


@pytest.mark.parametrize("count", [0, 1, 4, 5, 9, np.iinfo(np.int64).max])
def test_arrays(count) -> None:
    (found,) = tamiz_ops.run("LastPositions", [X, np.array([count])])
    np.testing.assert_array_equal(found, X[:, -min(count, 5) :])
    np.testing.assert_array_equal(
        found, reference.run("LastPositions", [X, np.array([min(count, 5)])])[0]
    )


def test_no_positions() -> None:
    (found,) = tamiz_ops.run("LastPositions", [X[:, :0], np.array([1])])
    assert found.shape == (3, 0, 8)


@pytest.mark.parametrize("fused", [False, True])
def test_a_graph_whose_runs_keep_other_numbers(fused) -> None:
    """The count has a default, and runs may give another."""
    if fused:
        program = "SwiGLU : 0 0 -> 2\nLastPositions : 2 1 -> 3"
        nodes = [node("Fused", ["x", "count"], ["y"], program=program, outputs=[3])]
    else:
        nodes = [
            node("SwiGLU", ["x", "x"], ["h"]),
            node("LastPositions", ["h", "count"], ["y"]),
        ]
    default = {"count": np.zeros(1, np.int64)}
    made = session(model(nodes, ["x", value("count", np.int64)], ["y"], default))
    (every,) = tamiz_ops.run("SwiGLU", [X, X])
    np.testing.assert_array_equal(made.run(None, {"x": X})[0], every)
    for count in (1, 3, 0):
        (found,) = made.run(None, {"x": X, "count": np.array([count])})
        np.testing.assert_array_equal(found, every[:, -count:])


@pytest.mark.parametrize(
    ("x", "count", "expected"),
    [
        (X[0], [1], r"x has shape \[5, 8\], expected 3 dimensions"),
        (X, [1, 1], r"count has shape \[2\], expected \[1\] \(one number\)"),
        (X, [-1], "count is -1, expected 0 or more"),
    ],
)
def test_what_does_not_fit(x, count, expected) -> None:
    with pytest.raises(ValueError, match=expected):
        tamiz_ops.run("LastPositions", [x, np.array(count)])
