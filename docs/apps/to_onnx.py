"""Write the model of a run on tables, with its preprocessing, as one ONNX file.

python to_onnx.py RUN FILE [CLIENT]

A column is an input under its name in the schema, of shape (rows, 1): a number in double precision,
or the text of a category. The output "predicted" has the probabilities of the classes, of shape
(rows, classes), or a quantity in its unit, of shape (rows, 1); it is NaN for a refused row.
"""

import json
import sys
from contextlib import suppress
from itertools import chain

import onnx
import torch
from onnx import TensorProto, compose, helper
from torch import nn

import fairbloom
from fairbloom.tables.cells import MAX_NUMBER
from fairbloom.tables.preprocessing import MAX_INPUT

# The places of a missing value and of an unknown text among the categories of a column.
MISSING = -1
UNKNOWN = -2


class FromColumns(nn.Module):
    """From numbers, and from places of categories, to predictions."""

    def __init__(self, predictor):
        super().__init__()
        self.model = predictor.module
        self.how = predictor.preprocessing

    def forward(self, columns):
        parts, refused = [], []
        for column, cells in zip(self.how.columns, columns, strict=True):
            encode = self.encode_places if column.kind == "category" else self.encode_numbers
            inputs, is_missing, is_wrong = encode(column, cells)
            parts.append(inputs.float())
            refused.append(is_wrong if column.fill else is_wrong | is_missing)
        outputs = self.model(torch.cat(parts, dim=1)).double()
        if self.how.classes:
            predicted = outputs.softmax(dim=1)
        else:
            predicted = outputs.reshape(-1, 1) * self.how.target_scale + self.how.target_center
        is_refused = torch.cat(refused, dim=1).any(dim=1, keepdim=True)
        return predicted.masked_fill(is_refused, float("nan"))

    def encode_places(self, column, places):
        """Return inputs, which cells have no value, and which may not be predicted."""
        inputs = places == torch.arange(len(column.categories))
        return inputs, places == MISSING, places == UNKNOWN

    def encode_numbers(self, column, written):
        """Return inputs, which cells have no value, and which may not be predicted."""
        field = self.how.dictionary.fields[column.name]
        own = self.how.own.field(column.name)
        numbers = written * exact(own.factor) + exact(own.offset)
        is_missing = written.isnan() | is_in(written, codes(self.how.dictionary, column.name))
        is_wrong = written.abs() > exact(MAX_NUMBER)
        is_wrong |= numbers < exact(field.constraints.minimum)
        is_wrong |= numbers > exact(field.constraints.maximum)
        if field.type == "integer":
            is_wrong |= numbers != numbers.floor()
        if field.constraints.enum:
            is_wrong |= ~is_in(numbers, field.constraints.enum)
        inputs = torch.zeros_like(numbers)
        if column.scale > 0:
            inputs = (numbers - exact(column.center)) / exact(column.scale)
        inputs = inputs.clamp(-MAX_INPUT, MAX_INPUT).masked_fill(is_missing, 0.0)
        return inputs, is_missing, is_wrong & ~is_missing


def exact(number):
    """Return a number in double precision: ONNX would have it in single precision."""
    return torch.tensor(number, dtype=torch.double)


def is_in(numbers, allowed):
    """Return for each row, shape (rows, 1), whether its number is one of those."""
    return (numbers == exact(allowed)).any(dim=1, keepdim=True)


def codes(schema, name):
    """Return the numbers that mean a missing value in a column."""
    found = [float("nan")]
    for marker in (*schema.missingValues, *schema.fields[name].missingValues):
        with suppress(ValueError):  # a word
            found.append(float(marker))
    return found


def places(schema, name):
    """Return the place of each text that means a category or a missing value."""
    field = schema.fields[name]
    markers = {text.casefold() for text in (*schema.missingValues, *field.missingValues)}
    forms = [(text, text.lower(), text.upper(), text.title()) for text in (*field.places, *markers)]
    found = {text: field.place(text, markers) for text in sorted({*chain(*forms)})}
    return {text: place for text, place in found.items() if place is not None}


def to_onnx(predictor):
    """Return the ONNX model of a predictor of tables."""
    how = predictor.preprocessing
    kinds = {"number": torch.double, "category": torch.long}
    cells = [torch.zeros(3, 1, dtype=kinds[column.kind]) for column in how.columns]
    exported = torch.onnx.export(
        FromColumns(predictor).eval(),
        (cells,),
        dynamic_shapes=([{0: torch.export.Dim("rows")}] * len(cells),),
        output_names=["predicted"],
        dynamo=True,
        verbose=False,
    ).model_proto
    for node in exported.graph.node:
        node.ClearField("metadata_props")  # which have paths of this machine
    # So that no column has the name of a value within the model.
    model = compose.add_prefix(exported, "model/", rename_outputs=False)
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    for given, column in zip(model.graph.input, how.columns, strict=True):
        model.graph.node.insert(0, reader_of(column, how.dictionary, given.name))
        kind = TensorProto.STRING if column.kind == "category" else TensorProto.DOUBLE
        given.CopyFrom(helper.make_tensor_value_info(column.name, kind, ["rows", 1]))
    helper.set_model_props(model, {"classes": json.dumps(how.classes)})
    onnx.checker.check_model(model, full_check=True)
    return model


def reader_of(column, schema, output):
    """Return the node from a column to what PyTorch computes with, which has no texts."""
    if column.kind == "number":
        return helper.make_node("Identity", [column.name], [output])
    known = places(schema, column.name)
    return helper.make_node(
        "LabelEncoder",
        [column.name],
        [output],
        domain="ai.onnx.ml",
        keys_strings=[*known],
        values_int64s=[*known.values()],
        default_int64=UNKNOWN,
    )


def main():
    run, file, *client = sys.argv[1:]
    onnx.save(to_onnx(fairbloom.load(run).predictor(*client)), file)


if __name__ == "__main__":
    main()
