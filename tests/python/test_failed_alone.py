"""A bad request fails alone, and requests of other shapes harm nobody: stock clients beside each other."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.http
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

import repositories
from serving import Server, counted

ROWS = 100
AT_ONCE = 13
TABLE = np.stack([np.arange(ROWS), -np.arange(ROWS)], axis=1).astype(np.float32)


def picked(kind):
    """Looks up rows of a table; what no row has is seen at the door only if it is an id, not if it is a number."""
    nodes = [
        helper.make_node("Cast", ["row"], ["id"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "id"], ["y"]),
    ]
    outputs = [("y", TensorProto.FLOAT, ["batch", 1, 2])]
    return repositories.graph(nodes, [("row", kind, ["batch", 1])], outputs, [numpy_helper.from_array(TABLE, "table")])


def doubled():
    shape = ["batch", "width"]
    node = helper.make_node("Add", ["x", "x"], ["y"])
    return repositories.graph([node], [("x", TensorProto.FLOAT, shape)], [("y", TensorProto.FLOAT, shape)])


def ask(server, model, name, datatype, array):
    """The answer, or the status and message of the error."""
    with tritonclient.http.InferenceServerClient(server.http) as client:
        given = tritonclient.http.InferInput(name, array.shape, datatype)
        given.set_data_from_numpy(array)
        try:
            return client.infer(model, [given]).as_numpy("y")
        except InferenceServerException as error:
            return int(error.status()), error.message()


def all_at_once(calls):
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda call: ask(*call), calls))


@pytest.mark.parametrize("engine", ["cpu", "onnxruntime"])
def test_a_culprit_fails_alone_and_with_its_own_value(tmp_path, engine):
    repositories.write(tmp_path, "pick", picked(TensorProto.FLOAT))
    rows = [4321 + at if at % AT_ONCE == 5 else at % ROWS for at in range(40 * AT_ONCE)]
    with Server(tmp_path, "--engine", engine) as server:
        calls = [(server, "pick", "row", "FP32", np.array([[row]], np.float32)) for row in rows]
        answers = all_at_once(calls)
        metrics = server.scrape()
    bad = [row for row in rows if row >= ROWS]
    for row, answer in zip(rows, answers):
        if row < ROWS:
            np.testing.assert_array_equal(answer, [[TABLE[row]]])
        else:
            status, message = answer
            assert status == 500 and str(row) in message
            assert not any(str(other) in message for other in bad if other != row)
    assert counted(metrics, "ripieno_bad_requests_total", model="pick") == len(bad)


@pytest.mark.parametrize("engine", ["cpu", "onnxruntime"])
def test_an_id_that_no_table_has_is_refused(tmp_path, engine):
    repositories.write(tmp_path, "pick", picked(TensorProto.INT64))
    with Server(tmp_path, "--engine", engine) as server:
        for row in (ROWS, -ROWS - 1, 2**40):
            status, message = ask(server, "pick", "row", "INT64", np.array([[row]], np.int64))
            assert status == 400 and f"input 'row' holds {row} at element 0" in message
            assert "send ids from -100 to 99" in message
        np.testing.assert_array_equal(ask(server, "pick", "row", "INT64", np.array([[-1]])), [[TABLE[-1]]])


def test_text_that_is_none_is_refused(tmp_path):
    repositories.write(tmp_path, "text", repositories.identity("BYTES"))
    with Server(tmp_path, "--engine", "onnxruntime") as server:
        text = [np.array([[b"a", b"\xff\xfe" if at % 3 == 0 else b"b", b"c"]], object) for at in range(60)]
        answers = all_at_once([(server, "text", "x", "BYTES", array) for array in text])
    for at, (array, answer) in enumerate(zip(text, answers)):
        if at % 3 == 0:
            status, message = answer
            assert status == 400 and "input 'x' holds no UTF-8 text" in message and "element 1" in message
        else:
            np.testing.assert_array_equal(answer, array)


@pytest.mark.parametrize("engine", ["cpu", "onnxruntime"])
def test_requests_of_several_shapes_are_all_answered(tmp_path, engine):
    repositories.write(tmp_path, "double", doubled())
    arrays = [np.full((1, 5 if at % AT_ONCE == 0 else 4), at, np.float32) for at in range(40 * AT_ONCE)]
    with Server(tmp_path, "--engine", engine) as server:
        answers = all_at_once([(server, "double", "x", "FP32", array) for array in arrays])
    for array, answer in zip(arrays, answers):
        np.testing.assert_array_equal(answer, 2 * array)
