"""A model as ONNX with its preprocessing inside the graph: a table's raw columns go in, predictions come out.

Numbers are standardised in double precision and rounded to single precision after that, as in training. Categories are
strings. The first inputs of the graph are the columns under their names; all names inside begin with a prefix that no
column has.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairbloom.tasks.files.reading.cells import BLANKS, MAX_NUMBER
from fairbloom.tasks.files.reading.numbers import MISSING
from fairbloom.tasks.groups import OTHER
from fairbloom.tasks.preprocessing import CATEGORY, TABLE, InputColumn, Predictions, Preprocessing

from .errors import explained, needed
from .exportable import Exportable
from .form import Form
from .torch_program import export_program

MODEL = "model.onnx"
"""The file of the graph."""

OTHERS = "torch or safetensors"
"""The forms that do without ONNX."""

OPSET, ML_OPSET, IR_VERSION = 20, 3, 10
"""Versions of ONNX's operators, of its operators for machine learning, and of the file: of 2024, for older runtimes."""

WHOLE = re.compile(r"[+-]?[0-9]+")

NO_CATEGORY, NO_VALUE = -1, -2
"""Codes of a text that is no known category, and of a missing value."""


@dataclass
class _Graph:
    """The nodes and constants around a model's own graph, the names of which begin with `prefix`."""

    prefix: str
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Add a node with one output, and return the output's name."""
        from onnx import helper

        output = name or f"{self.prefix}{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def constant(self, values: Any) -> str:
        """Add a constant, and return its name; texts are strings of ONNX."""
        from onnx import TensorProto, helper, numpy_helper

        name, array = f"{self.prefix}constant_{len(self.constants)}", np.asarray(values)
        if array.dtype.kind == "U":
            texts = [text.encode() for text in array.ravel().tolist()]
            self.constants.append(helper.make_tensor(name, TensorProto.STRING, array.shape, texts))
        else:
            self.constants.append(numpy_helper.from_array(array, name))
        return name

    def numbers(self, columns: Sequence[InputColumn]) -> tuple[str, str]:
        """Add the inputs of columns of numbers; return their name, and that of whether a row has no prediction."""
        raw = self.add("Concat", *(column.name for column in columns), axis=1) if len(columns) > 1 else columns[0].name
        center, scale = (np.array([[getattr(each, key) for each in columns]]) for key in ("center", "scale"))
        # What was constant in training has the input 0: divided by infinity every number becomes it.
        shifted = self.add("Sub", raw, self.constant(center))
        ratio = self.add("Div", shifted, self.constant(np.where(scale > 0.0, scale, np.inf)))
        gone = self.add("IsNaN", raw)
        filled = self.add("Where", gone, self.constant(np.zeros((1, 1))), ratio)
        required = self.constant(np.array([[not each.fill for each in columns]]))
        large = self.add("Greater", self.add("Abs", raw), self.constant(np.array([[MAX_NUMBER]])))
        refused = self.add("Or", large, self.add("And", gone, required))
        return self.add("Cast", filled, to=_onnx_type("FLOAT")), refused

    def categories(self, column: InputColumn) -> tuple[str, str]:
        """Add the inputs of a column of categories; return their name, and that of whether a row has no prediction."""
        rest = column.categories.index(OTHER) if column.other else NO_CATEGORY
        codes = dict.fromkeys(sorted(BLANKS), NO_VALUE)
        for place, text in enumerate(column.categories):
            # A whole number has a point, too, where a column was read as numbers.
            codes |= dict.fromkeys((text, f"{text}.", f"{text}.0") if WHOLE.fullmatch(text) else (text,), place)
        code = self.add(
            "LabelEncoder",
            column.name,
            domain="ai.onnx.ml",
            keys_strings=list(codes),
            values_int64s=list(codes.values()),
            default_int64=rest,
        )
        places = self.constant(np.arange(len(column.categories), dtype=np.int64)[None, :])
        inputs = self.add("Cast", self.add("Equal", code, places), to=_onnx_type("FLOAT"))
        gone = self.add("Equal", code, self.constant(np.array([[NO_VALUE]])))
        return inputs, self.add("And", gone, self.constant(np.array([[not column.fill]])))

    def table(self, columns: Sequence[InputColumn]) -> tuple[str, str]:
        """Add the inputs of a table's columns; return their name, and that of whether a row has no prediction."""
        parts = []
        for is_category, block in groupby(columns, lambda column: column.kind == CATEGORY):
            together = [*block]
            parts += [self.categories(column) for column in together] if is_category else [self.numbers(together)]
        inputs, refused = zip(*parts, strict=True)
        # As numbers, since not every runtime has the largest of truths.
        reasons = self.add("Cast", self.add("Concat", *refused, axis=1), to=_onnx_type("FLOAT"))
        most = self.add("ReduceMax", reasons, self.constant(np.array([1])), keepdims=1)
        return self.add("Concat", *inputs, axis=1), self.add("Cast", most, to=_onnx_type("BOOL"))

    def predictions(self, preprocessing: Preprocessing, names: Sequence[str], found: str, refused: str) -> list[Any]:
        """Add the outputs: classes as strings with probabilities, or a quantity; NaN and "" for a row without one."""
        if not preprocessing.classes:
            rows = self.add("Reshape", refused, self.constant(np.array([-1]))) if refused else ""
            self._unless(rows, math.nan, found, names[0], np.float64)
            return [_value(names[0], _onnx_type("DOUBLE"))]
        label = self.add("Gather", self.constant(np.array(preprocessing.classes)), self._place(preprocessing, found))
        rows = self.add("Reshape", refused, self.constant(np.array([-1]))) if refused else ""
        self._unless(rows, "", label, names[0], np.str_)
        self._unless(refused, math.nan, found, names[1], np.float32)
        return [
            _value(names[0], _onnx_type("STRING")),
            _value(names[1], _onnx_type("FLOAT"), len(preprocessing.classes)),
        ]

    def _place(self, preprocessing: Preprocessing, found: str) -> str:
        """Add which class is predicted; return the name of its place among the classes."""
        if not preprocessing.positive:
            return self.add("ArgMax", found, axis=1, keepdims=0)
        place = preprocessing.classes.index(preprocessing.positive)
        chance = self.add("Gather", found, self.constant(np.array(place)), axis=1)
        exact = self.add("Cast", chance, to=_onnx_type("DOUBLE"))
        positive = self.add("GreaterOrEqual", exact, self.constant(np.array(preprocessing.threshold)))
        return self.add("Where", positive, self.constant(np.array(place)), self.constant(np.array(1 - place)))

    def _unless(self, refused: str, nothing: float | str, values: str, name: str, dtype: type) -> None:
        """Add an output that is `nothing` for the rows without a prediction, where there may be such rows."""
        if refused:
            self.add("Where", refused, self.constant(np.array(nothing, dtype)), values, name=name)
        else:
            self.add("Identity", values, name=name)


def _onnx_type(name: str) -> int:
    from onnx import TensorProto

    return int(getattr(TensorProto, name))


# The whole graph ------------------------------------------------------------------------------------------------------


def write_onnx(exported: Exportable, folder: Path) -> None:
    """Write one graph of the preprocessing, the model and what its outputs stand for."""
    onnx, *_ = (needed(module, ONNX.name, "onnx") for module in ("onnx", "onnxscript", "onnxruntime"))
    program = export_program(exported, ONNX.name)
    with explained(ONNX.name, OTHERS):
        converted = torch.onnx.export(program, (), dynamo=True, opset_version=OPSET, verbose=False)
        assert converted is not None  # noqa: S101 (PyTorch returns None without dynamo alone)
        model = _surrounded(converted.model_proto, exported)
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, folder / MODEL)


def _surrounded(core: Any, exported: Exportable) -> Any:
    """Return a graph that takes raw data and returns predictions, of one that takes inputs and returns numbers."""
    from onnx import compose, helper

    preprocessing = exported.preprocessing
    names = list(exported.raw)
    prefix = _unused_prefix(names)
    model = compose.add_prefix(core, f"{prefix}model/")
    graph = model.graph
    asked, (found,) = [*graph.input], graph.output
    before, after = _Graph(f"{prefix}in/"), _Graph(f"{prefix}out/")
    refused = ""
    if preprocessing.form == TABLE:
        inputs, refused = before.table(preprocessing.columns)
        before.add("Identity", inputs, name=asked[0].name)
        kinds = ["STRING" if column.kind == CATEGORY else "DOUBLE" for column in preprocessing.columns]
        raw = [_value(name, _onnx_type(kind), 1) for name, kind in zip(names, kinds, strict=True)]
    else:
        raw = []
        for name, inner, shape in zip(names, asked, exported.shapes, strict=True):
            before.add("Identity", name, name=inner.name)
            raw.append(_value(name, inner.type.tensor_type.elem_type, *shape))
    outputs = after.predictions(preprocessing, output_names(exported), found.name, refused)
    _replace(graph.node, [*before.nodes, *graph.node, *after.nodes])
    _replace(graph.input, raw)
    _replace(graph.output, outputs)
    _replace(graph.value_info, [])  # in which the number of examples has another name
    graph.initializer.extend([*before.constants, *after.constants])
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", ML_OPSET))
    model.ir_version = IR_VERSION
    helper.set_model_props(model, _about(exported))
    return model


def _value(name: str, kind: int, *shape: int) -> Any:
    """Return an input or output of a graph, for any number of examples."""
    from onnx import helper

    return helper.make_tensor_value_info(name, kind, ["batch", *shape])


def _replace(values: Any, others: Sequence[Any]) -> None:
    kept = list(others)
    del values[:]
    values.extend(kept)


def _unused_prefix(names: Sequence[str]) -> str:
    prefix = "/"
    while any(name.startswith(prefix) for name in names):
        prefix += "/"
    return prefix


def output_names(exported: Exportable) -> list[str]:
    """Return the names of the graph's outputs, none of which is that of an input."""
    taken, names = set(exported.raw), []
    for name in (exported.predicted, "probabilities") if exported.preprocessing.classes else (exported.predicted,):
        while name in taken:
            name += "_"
        names.append(name)
        taken.add(name)
    return names


def _about(exported: Exportable) -> dict[str, str]:
    preprocessing = exported.preprocessing
    lists = {"classes": preprocessing.classes, "columns": [column.name for column in preprocessing.columns]}
    texts = {key: json.dumps(values, ensure_ascii=False) for key, values in lists.items()}
    return exported.about | {"target": preprocessing.target} | texts


# Its use --------------------------------------------------------------------------------------------------------------


def predict(exported: Exportable, folder: Path) -> Predictions:
    """Return what ONNX Runtime predicts with the graph in a folder."""
    runtime = needed("onnxruntime", ONNX.name, "onnx")
    with explained(ONNX.name, OTHERS):
        session = runtime.InferenceSession(folder / MODEL, providers=["CPUExecutionProvider"])
        values, *probabilities = session.run(None, _feed(exported))
    return Predictions(values, probabilities[0] if probabilities else None)


def _feed(exported: Exportable) -> dict[str, Any]:
    """Return what the inputs of the graph are given: a column of each, shape (n, 1), or an array."""
    if exported.preprocessing.form != TABLE:
        return dict(exported.raw)
    return {
        column.name: exported.raw[[column.name]].to_numpy(object if column.kind == CATEGORY else np.float64)
        for column in exported.preprocessing.columns
    }


READ_TABLE = f"""\
import onnxruntime
import pandas

session = onnxruntime.InferenceSession("{MODEL}")
names = [each.name for each in session.get_inputs()]
texts = [each.name for each in session.get_inputs() if each.type == "tensor(string)"]
missing = {sorted(MISSING)}  # in any case of letters
frame = pandas.read_csv("new.csv", dtype=str, keep_default_na=False).apply(lambda column: column.str.strip())
frame = frame.mask(frame.apply(lambda column: column.str.lower()).isin(missing), "")
numbers = [name for name in names if name not in texts]
frame[numbers] = frame[numbers].replace("", "nan").astype(float)
feed = {{name: frame[[name]].to_numpy(object if name in texts else float) for name in names}}
print(session.run(None, feed))
"""
"""Lines of Python that predict for the rows of a file by ONNX Runtime and pandas."""


def listing(exported: Exportable) -> str:
    """Return lines of Python that predict by ONNX Runtime."""
    if exported.preprocessing.form == TABLE:
        return READ_TABLE
    arrays = [
        f"{name!r}: numpy.zeros({(5, *each.shape[1:])}, numpy.{each.dtype})" for name, each in exported.raw.items()
    ]
    return f"""\
import numpy
import onnxruntime

session = onnxruntime.InferenceSession("{MODEL}")
print(session.run(None, {{{", ".join(arrays)}}}))"""


ONNX = Form(
    name="onnx",
    title="ONNX graph with its preprocessing inside",
    library="onnx",
    write=write_onnx,
    predict=predict,
    listing=listing,
)
