"""An ONNX graph around a model's own: raw data go in, predictions come out.

A table's columns are inputs under their names, each of shape (n, 1): numbers in double precision,
which are standardised and then rounded to single precision, as in training; categories as strings.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, checker, compose, helper, numpy_helper

from fairbloom.tasks.preprocessing import CATEGORY, TABLE, InputColumn, Preprocessing
from fairbloom.tasks.schema import Schema
from fairbloom.tasks.tables.cells import MAX_NUMBER

INPUTS = "inputs"
"""The graph's input where raw data are no table: an array, as the model takes it."""

OPSET = 20
ML_OPSET = 3
IR_VERSION = 10
"""Versions of ONNX's operators, of its operators for machine learning, and of the file: of 2024,
for older runtimes."""

NO_CATEGORY = -1
NO_VALUE = -2
"""Codes of a text that is no known category, and of a missing value."""


def surround(
    core: onnx.ModelProto, how: Preprocessing, about: Mapping[str, str]
) -> onnx.ModelProto:
    """Return a model that takes raw data and returns predictions, of one that takes inputs and returns numbers.

    `core` returns probabilities of classes, or a quantity in its own unit. `about` is kept in the
    file as metadata.
    """
    names = [column.name for column in how.columns] or [INPUTS]
    # What all names inside begin with, and no column.
    prefix = "/" * (1 + max(len(name) - len(name.lstrip("/")) for name in names))
    core = compose.add_prefix(core, f"{prefix}model/")
    (asked,) = core.graph.input
    (found,) = core.graph.output
    graph = _Graph(prefix)
    refused = ""
    if how.form == TABLE:
        inputs, refused = graph.table(how.columns, how.dictionary)
        graph.add("Identity", inputs, name=asked.name)
        kinds = [
            TensorProto.STRING if column.kind == CATEGORY else TensorProto.DOUBLE
            for column in how.columns
        ]
        raw = [_value(name, kind, 1) for name, kind in zip(names, kinds, strict=True)]
    else:
        graph.add("Identity", INPUTS, name=asked.name)
        raw = [_value(INPUTS, TensorProto.FLOAT, *how.shape)]
    graph.nodes += core.graph.node
    predicted = _unused(f"predicted_{how.target or 'target'}", names)
    outputs = graph.predictions(
        how.classes, (predicted, _unused("probabilities", names)), found.name, refused
    )
    model = helper.make_model(
        helper.make_graph(
            graph.nodes, "fairbloom", raw, outputs, [*core.graph.initializer, *graph.constants]
        ),
        opset_imports=[*core.opset_import, helper.make_opsetid("ai.onnx.ml", ML_OPSET)],
        functions=core.functions,
        ir_version=IR_VERSION,
    )
    lists = {"classes": how.classes, "columns": [column.name for column in how.columns]}
    texts = {key: json.dumps(values, ensure_ascii=False) for key, values in lists.items()}
    helper.set_model_props(model, {**about, "target": how.target, **texts})
    checker.check_model(model, full_check=True)
    return model


@dataclass
class _Graph:
    """The nodes and constants around a model's own graph, the names of which begin with `prefix`."""

    prefix: str
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Add a node with one output, and return the output's name."""
        output = name or f"{self.prefix}{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def constant(self, values: Any) -> str:
        """Add a constant, and return its name; texts are strings of ONNX."""
        name = f"{self.prefix}constant_{len(self.constants)}"
        array = np.asarray(values)
        array = array.astype(object) if array.dtype.kind == "U" else array
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def table(self, columns: Sequence[InputColumn], schema: Schema) -> tuple[str, str]:
        """Add the inputs of a table's columns.

        Return their name, and that of whether a row has no prediction.
        """
        parts = [
            self.categories(each, schema) if each.kind == CATEGORY else self.numbers(each)
            for each in columns
        ]
        inputs, refused = zip(*parts, strict=True)
        # As numbers, since not every runtime has the largest of truths.
        reasons = self.add("Cast", self.add("Concat", *refused, axis=1), to=TensorProto.FLOAT)
        most = self.add("ReduceMax", reasons, self.constant(np.array([1])), keepdims=1)
        return self.add("Concat", *inputs, axis=1), self.add("Cast", most, to=TensorProto.BOOL)

    def numbers(self, column: InputColumn) -> tuple[str, str]:
        """Add the input of a column of numbers.

        Return its name, and that of whether a row has no prediction.
        """
        # What was constant in training has the input 0: divided by infinity every number becomes
        # it.
        shifted = self.add("Sub", column.name, self.constant(column.center))
        ratio = self.add(
            "Div", shifted, self.constant(column.scale if column.scale > 0.0 else math.inf)
        )
        gone = self.add("IsNaN", column.name)
        filled = self.add("Where", gone, self.constant(0.0), ratio)
        large = self.add("Greater", self.add("Abs", column.name), self.constant(MAX_NUMBER))
        refused = large if column.fill else self.add("Or", large, gone)
        return self.add("Cast", filled, to=TensorProto.FLOAT), refused

    def categories(self, column: InputColumn, schema: Schema) -> tuple[str, str]:
        """Add the inputs of a column of categories.

        Return their name, and that of whether a row has no prediction.
        """
        field = schema.fields[column.name]
        # in every case of their letters; long ones as they are, in small and in capital letters
        words = set[str]()
        for word in (*schema.missingValues, *field.missingValues):
            words |= {word, word.lower(), word.upper()}
            if len(word) < 8:
                words |= {
                    "".join(each) for each in product(*({c.lower(), c.upper()} for c in word))
                }
        codes = dict.fromkeys(sorted(words), NO_VALUE)
        for text, place in field.places.items():
            # A whole number has a point, too, where a column was read as numbers.
            codes |= dict.fromkeys(
                (text, f"{text}.", f"{text}.0") if re.fullmatch(r"[+-]?[0-9]+", text) else (text,),
                place,
            )
        code = self.add(
            "LabelEncoder",
            column.name,
            domain="ai.onnx.ml",
            keys_strings=list(codes),
            values_int64s=list(codes.values()),
            default_int64=NO_CATEGORY,
        )
        places = self.constant(np.arange(len(column.categories), dtype=np.int64)[None, :])
        inputs = self.add("Cast", self.add("Equal", code, places), to=TensorProto.FLOAT)
        refused = self.add("Equal", code, self.constant(np.array([[NO_CATEGORY]])))
        if not column.fill:
            refused = self.add(
                "Or", refused, self.add("Equal", code, self.constant(np.array([[NO_VALUE]])))
            )
        return inputs, refused

    def predictions(
        self, classes: Sequence[str], names: Sequence[str], found: str, refused: str
    ) -> list[Any]:
        """Add the outputs: classes as strings with probabilities, or a quantity.

        NaN and "" for a row without one.
        """
        rows = self.add("Reshape", refused, self.constant(np.array([-1]))) if refused else ""
        if not classes:
            self._unless(rows, math.nan, found, names[0], np.float64)
            return [_value(names[0], TensorProto.DOUBLE)]
        label = self.add(
            "Gather",
            self.constant(np.array(classes)),
            self.add("ArgMax", found, axis=1, keepdims=0),
        )
        self._unless(rows, "", label, names[0], np.str_)
        self._unless(refused, math.nan, found, names[1], np.float32)
        return [
            _value(names[0], TensorProto.STRING),
            _value(names[1], TensorProto.FLOAT, len(classes)),
        ]

    def _unless(
        self, refused: str, nothing: float | str, values: str, name: str, dtype: type
    ) -> None:
        """Add an output that is `nothing` for the rows without a prediction, where there may be such rows."""
        inputs = (
            (refused, self.constant(np.array(nothing, dtype)), values) if refused else (values,)
        )
        self.add("Where" if refused else "Identity", *inputs, name=name)


def _unused(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _value(name: str, kind: int, *shape: int) -> onnx.ValueInfoProto:
    """Return an input or output of a graph, for any number of examples."""
    return helper.make_tensor_value_info(name, kind, ["batch", *shape])
