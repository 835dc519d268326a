"""An ONNX graph around a model's own graph, from raw data to predictions.

A table's columns are inputs under their names, each of shape (n, 1). Numbers are in double
precision; they are standardised and then rounded to single precision, as in training. Categories
are strings.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import product

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import ClearMetadataAndDocStringPass, NameFixPass
from onnxscript import GraphBuilder, OpBuilder

from fairbloom.tables.cells import MAX_NUMBER
from fairbloom.tables.preprocessing import (
    CATEGORY,
    MAX_INPUT,
    NUMBER,
    TABLE,
    InputColumn,
    Preprocessing,
)
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


def surround(core: ir.Model, how: Preprocessing, about: Mapping[str, str]) -> onnx.ModelProto:
    """Return a model from raw data to predictions, around one from inputs to numbers.

    It takes the graph of `core`, which returns probabilities of classes, or a quantity in its own
    unit. `about` is stored in the file as metadata.
    """
    graph = core.graph
    graph.name = "fairbloom"
    (asked,) = graph.inputs
    (found,) = graph.outputs
    graph.inputs.clear()
    graph.outputs.clear()
    graph.opset_imports["ai.onnx.ml"] = ML_OPSET
    op = GraphBuilder(graph).op
    if how.form == TABLE:
        encoders = {CATEGORY: _encode_text, NUMBER: _encode_number}
        parts, reasons = zip(
            *[encoders[column.kind](op, column, how) for column in how.columns], strict=True
        )
        inputs = op.Concat(*parts, axis=1)
        refused = op.Concat(*reasons, axis=1)
    else:
        inputs = op.builder.input(INPUTS, ir.DataType.FLOAT, ["batch", *how.shape])
        numbers = op.Reshape(inputs, [0, -1])
        refused = op.Or(op.IsNaN(numbers), op.IsInf(numbers))
    asked.replace_all_uses_with(inputs)
    _add_predictions(op, how, found, _any(op, refused))
    graph.sort()  # nodes that the core's need were added after them
    model = ir.Model(
        graph,
        ir_version=IR_VERSION,
        functions=list(core.functions.values()),
        metadata_props={
            **about,
            "target": how.target,
            "classes": json.dumps(how.classes, ensure_ascii=False),
            "columns": json.dumps([column.name for column in how.columns], ensure_ascii=False),
        },
    )
    # PyTorch's metadata have paths of this machine, and lines of its code.
    ClearMetadataAndDocStringPass()(model)
    # A column may have the name of an output of a node.
    NameFixPass()(model)
    exported = ir.to_proto(model)
    for taken, column in zip(exported.graph.input, how.columns, strict=False):
        taken.doc_string = (
            how.own.field(column.name).unit or how.dictionary.fields[column.name].unit
        )
    onnx.checker.check_model(exported, full_check=True)
    return exported


def _any(op: OpBuilder, reasons: ir.Value) -> ir.Value:
    """Return whether each row has a reason, shape (n, 1)."""
    # Cast to numbers, because not every runtime has ReduceMax of booleans.
    most = op.ReduceMax(op.Cast(reasons, to=ir.DataType.FLOAT), [1], keepdims=1)
    is_any: ir.Value = op.Cast(most, to=ir.DataType.BOOL)
    return is_any


def _encode_number(
    op: OpBuilder, column: InputColumn, how: Preprocessing
) -> tuple[ir.Value, ir.Value]:
    """Add a column of numbers; return the model's input, and whether each row is refused."""
    number = op.builder.input(column.name, ir.DataType.DOUBLE, ["batch", 1])
    # A column that was constant in training has the input 0: a number divided by infinity.
    scale = column.scale if column.scale > 0.0 else math.inf
    own = how.own.field(column.name)
    converted = op.Add(op.Mul(number, own.factor), own.offset)
    ratio = op.Clip(op.Div(op.Sub(converted, column.center), scale), -MAX_INPUT, MAX_INPUT)
    missing = op.IsNaN(number)
    if codes := codes_of(how.dictionary, column.name):
        missing = op.Or(missing, _any(op, op.Equal(number, codes)))
    # A cell is limited as it is written, and the field's limits are for the converted number.
    refused = op.Or(
        _is_out_of_range(op, converted, how.dictionary.fields[column.name]),
        op.Greater(op.Abs(number), MAX_NUMBER),
    )
    refused = op.And(refused, op.Not(missing)) if column.fill else op.Or(refused, missing)
    return op.Cast(op.Where(missing, 0.0, ratio), to=ir.DataType.FLOAT), refused


def _is_out_of_range(op: OpBuilder, number: ir.Value, field: Field) -> ir.Value:
    """Return whether each row has a number that the field does not allow."""
    limits = field.constraints
    refused: ir.Value = op.Or(op.Greater(number, limits.maximum), op.Less(number, limits.minimum))
    if limits.enum:
        refused = op.Or(
            refused, op.Not(_any(op, op.Equal(number, [float(each) for each in limits.enum])))
        )
    if field.type == "integer":
        refused = op.Or(refused, op.Not(op.Equal(number, op.Floor(number))))
    return refused


def _encode_text(
    op: OpBuilder, column: InputColumn, how: Preprocessing
) -> tuple[ir.Value, ir.Value]:
    """Add a column of categories; return the model's inputs, and whether each row is refused."""
    text = op.builder.input(column.name, ir.DataType.STRING, ["batch", 1])
    codes = _codes_of_texts(how.dictionary, column.name)
    code = op.builder.opset("ai.onnx.ml", ML_OPSET).LabelEncoder(
        text,
        keys_strings=list(codes),
        values_int64s=list(codes.values()),
        default_int64=NO_CATEGORY,
    )
    is_place = op.Equal(code, list(range(len(column.categories))))
    refused = op.Equal(code, NO_CATEGORY)
    if not column.fill:
        refused = op.Or(refused, op.Equal(code, NO_VALUE))
    return op.Cast(is_place, to=ir.DataType.FLOAT), refused


def _codes_of_texts(schema: Schema, name: str) -> dict[str, int]:
    """Return a code for each text that training read as a category or as a missing value."""
    field = schema.fields[name]
    markers = set[str]().union(*map(_vary_case, (*schema.missingValues, *field.missingValues)))
    codes = dict.fromkeys(sorted(markers), NO_VALUE)
    missing = {marker.casefold() for marker in markers}
    for text, place in field.places.items():
        if place < 0:  # a missing value
            continue
        spellings = [
            each for each in sorted(_vary_case(text)) if field.place(each, missing) == place
        ]
        # A column that was read as numbers may write whole numbers with a decimal point.
        if re.fullmatch(r"[+-]?[0-9]+", text):
            spellings += [f"{text}.", f"{text}.0"]
        codes |= dict.fromkeys(spellings, place)
    return codes


def _add_predictions(op: OpBuilder, how: Preprocessing, found: ir.Value, refused: ir.Value) -> None:
    """Add the outputs: classes as strings with probabilities, or a quantity.

    A refused row has NaN and "".
    """
    taken = [column.name for column in how.columns] or [INPUTS]
    predicted = _unused(f"predicted_{how.target or 'target'}", taken)
    rows = op.Reshape(refused, [-1])
    if how.classes:
        place = op.Where(rows, len(how.classes), op.ArgMax(found, axis=1, keepdims=0))
        outputs = {
            predicted: op.Gather([*how.classes, ""], place),
            _unused("probabilities", taken): op.Where(refused, math.nan, found),
        }
    else:
        outputs = {predicted: op.Where(rows, math.nan, found)}
    for name, value in outputs.items():
        value.shape[0] = "batch"
        op.builder.add_output(value, name)


def _vary_case(word: str) -> set[str]:
    """Return a word in other cases of letters: all of them, or upper and lower case if long."""
    if len(word) < 8:
        return {"".join(each) for each in product(*({it.lower(), it.upper()} for it in word))}
    return {word, word.lower(), word.upper(), word.capitalize()}


def _unused(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "_"
    return name
