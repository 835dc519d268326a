"""An ONNX graph around a model's own graph, from raw data to predictions.

A table's columns are inputs under their names, each of shape (n, 1). Numbers are in double
precision; they are standardised and then rounded to single precision, as in training. Categories
are strings.
"""

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, checker, compose, helper, numpy_helper

from fairbloom.tables.cells import MAX_NUMBER
from fairbloom.tables.preprocessing import CATEGORY, MAX_INPUT, TABLE, InputColumn, Preprocessing
from fairbloom.tables.schema import Field, Schema

from .output_rows import codes_of

# The graph's input if raw data are not a table: an array in the model's shape.
INPUTS = "inputs"

# Versions of ONNX's operators, of its operators for machine learning, and of the file. They are
# from 2024, so that older runtimes read the file.
OPSET = 20
ML_OPSET = 3
IR_VERSION = 10

# Codes of a text that is not a known category, and of a missing value.
NO_CATEGORY = -1
NO_VALUE = -2


def surround(
    core: onnx.ModelProto, how: Preprocessing, about: Mapping[str, str]
) -> onnx.ModelProto:
    """Return a model from raw data to predictions, around one from inputs to numbers.

    `core` returns probabilities of classes, or a quantity in its own unit. `about` is stored in the
    file as metadata.
    """
    names = [column.name for column in how.columns] or [INPUTS]
    # a prefix for all names of the graph, with which no column begins
    prefix = "/" * (1 + max(len(name) - len(name.lstrip("/")) for name in names))
    core = compose.add_prefix(core, f"{prefix}model/")
    for node in chain(core.graph.node, *(each.node for each in core.functions)):
        del node.metadata_props[:]  # PyTorch's: paths of this machine, and lines of its code
    (asked,) = core.graph.input
    (found,) = core.graph.output
    graph = _Graph(prefix)
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
        refused = graph.not_finite(INPUTS)
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
    """The nodes and constants around a model's own graph; their names begin with `prefix`."""

    prefix: str
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Add a node with one output, and return the output's name."""
        output = name or f"{self.prefix}{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def constant(self, values: Any) -> str:
        """Add a constant, and return its name; texts become ONNX strings."""
        name = f"{self.prefix}constant_{len(self.constants)}"
        array = np.asarray(values)
        if array.dtype.kind == "U":
            array = array.astype(object)
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def table(self, columns: Sequence[InputColumn], schema: Schema) -> tuple[str, str]:
        """Add the inputs of a table's columns.

        Return the output with the inputs, and the output that is true for refused rows, which have
        no prediction.
        """
        inputs = list[str]()
        refused = list[str]()
        for column in columns:
            is_category = column.kind == CATEGORY
            parts = (self.categories if is_category else self.numbers)(column, schema)
            inputs.append(parts[0])
            refused.append(parts[1])
        any_reason = self._any(self.add("Concat", *refused, axis=1))
        return self.add("Concat", *inputs, axis=1), any_reason

    def not_finite(self, inputs: str) -> str:
        """Add an output that is true for examples with NaN or infinite numbers, shape (n, 1)."""
        rows = self.add("Reshape", inputs, self.constant(np.array([0, -1])))
        is_any = self.add("Or", self.add("IsNaN", rows), self.add("IsInf", rows))
        return self._any(is_any)

    def _any(self, reasons: str) -> str:
        """Add an output that is true for rows with a reason, shape (n, 1)."""
        # Cast to numbers, because not every runtime has ReduceMax of booleans.
        numbers = self.add("Cast", reasons, to=TensorProto.FLOAT)
        most = self.add("ReduceMax", numbers, self.constant(np.array([1])), keepdims=1)
        return self.add("Cast", most, to=TensorProto.BOOL)

    def _is_in(self, values: str, numbers: Collection[float]) -> str:
        """Add an output that is true for rows with one of `numbers`; `values` has shape (n, 1)."""
        return self._any(self.add("Equal", values, self.constant(np.array([[*numbers]], float))))

    def numbers(self, column: InputColumn, schema: Schema) -> tuple[str, str]:
        """Add the input of a column of numbers; return its output and that of refused rows."""
        # A column that was constant in training has the input 0: a number divided by infinity.
        shifted = self.add("Sub", column.name, self.constant(column.center))
        ratio = self.add(
            "Div", shifted, self.constant(column.scale if column.scale > 0.0 else math.inf)
        )
        clipped = self.add("Clip", ratio, self.constant(-MAX_INPUT), self.constant(MAX_INPUT))
        missing = self.add("IsNaN", column.name)
        if codes := codes_of(schema, column.name):
            missing = self.add("Or", missing, self._is_in(column.name, codes))
        filled = self.add("Where", missing, self.constant(0.0), clipped)
        refused = self._out_of_range(column.name, schema.fields[column.name])
        if column.fill:
            refused = self.add("And", refused, self.add("Not", missing))
        else:
            refused = self.add("Or", refused, missing)
        return self.add("Cast", filled, to=TensorProto.FLOAT), refused

    def _out_of_range(self, name: str, field: Field) -> str:
        """Add an output that is true for rows with a number that the field does not allow."""
        limits = field.constraints
        largest = min(limits.maximum, MAX_NUMBER)
        least = max(limits.minimum, -MAX_NUMBER)
        refused = self.add(
            "Or",
            self.add("Greater", name, self.constant(largest)),
            self.add("Less", name, self.constant(least)),
        )
        if limits.enum:
            unlisted = self.add("Not", self._is_in(name, limits.enum))
            refused = self.add("Or", refused, unlisted)
        if field.type == "integer":
            whole = self.add("Equal", name, self.add("Floor", name))
            refused = self.add("Or", refused, self.add("Not", whole))
        return refused

    def categories(self, column: InputColumn, schema: Schema) -> tuple[str, str]:
        """Add the inputs of a column of categories; return its output and that of refused rows."""
        field = schema.fields[column.name]
        markers = set[str]()
        for word in (*schema.missingValues, *field.missingValues):
            markers |= _vary_case(word)
        codes = dict.fromkeys(sorted(markers), NO_VALUE)
        missing = {marker.casefold() for marker in markers}
        for text, place in field.places.items():
            spellings = [
                each for each in sorted(_vary_case(text)) if field.place(each, missing) == place
            ]
            # A column that was read as numbers may write whole numbers with a decimal point.
            if re.fullmatch(r"[+-]?[0-9]+", text):
                spellings += [f"{text}.", f"{text}.0"]
            codes |= dict.fromkeys(spellings, place)
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

        A refused row has NaN and "".
        """
        rows = self.add("Reshape", refused, self.constant(np.array([-1])))
        if not classes:
            nothing = self.constant(np.array(math.nan))
            self.add("Where", rows, nothing, found, name=names[0])
            return [_value(names[0], TensorProto.DOUBLE)]
        label = self.add(
            "Gather",
            self.constant(np.array(classes)),
            self.add("ArgMax", found, axis=1, keepdims=0),
        )
        self.add("Where", rows, self.constant(""), label, name=names[0])
        nothing = self.constant(np.array(math.nan, np.float32))
        self.add("Where", refused, nothing, found, name=names[1])
        return [
            _value(names[0], TensorProto.STRING),
            _value(names[1], TensorProto.FLOAT, len(classes)),
        ]


def _vary_case(word: str) -> set[str]:
    """Return a word in other cases of letters: all of them, or upper and lower case if long."""
    if len(word) < 8:
        return {"".join(each) for each in product(*({it.lower(), it.upper()} for it in word))}
    return {word, word.lower(), word.upper(), word.capitalize()}


def _unused(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _value(name: str, kind: int, *shape: int) -> onnx.ValueInfoProto:
    """Return an input or output of a graph, for any number of examples."""
    return helper.make_tensor_value_info(name, kind, ["batch", *shape])
