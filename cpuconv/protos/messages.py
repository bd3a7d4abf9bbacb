"""The messages of an ONNX model, as records with the fields of `onnx.proto`.

A missing field has its default: an empty tuple if it is repeated, an empty message, 0, or an empty string.

Source: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

from typing import Any, NamedTuple

_MESSAGES = {  # fields as "number name type"; * before a name: repeated; = after a type: member of a oneof
    "ModelProto": "1 ir_version int64, 8 *opset_import OperatorSetIdProto, 2 producer_name string,"
    " 3 producer_version string, 4 domain string, 5 model_version int64, 6 doc_string string, 7 graph GraphProto,"
    " 14 *metadata_props StringStringEntryProto, 20 *training_info TrainingInfoProto, 25 *functions FunctionProto,"
    " 26 *configuration DeviceConfigurationProto",
    "OperatorSetIdProto": "1 domain string, 2 version int64",
    "GraphProto": "1 *node NodeProto, 2 name string, 5 *initializer TensorProto,"
    " 15 *sparse_initializer SparseTensorProto, 10 doc_string string, 11 *input ValueInfoProto,"
    " 12 *output ValueInfoProto, 13 *value_info ValueInfoProto, 14 *quantization_annotation TensorAnnotation,"
    " 16 *metadata_props StringStringEntryProto",
    "StringStringEntryProto": "1 key string, 2 value string",
    "TrainingInfoProto": "1 initialization GraphProto, 2 algorithm GraphProto,"
    " 3 *initialization_binding StringStringEntryProto, 4 *update_binding StringStringEntryProto",
    "FunctionProto": "1 name string, 4 *input string, 5 *output string, 6 *attribute string,"
    " 11 *attribute_proto AttributeProto, 7 *node NodeProto, 8 doc_string string, 9 *opset_import OperatorSetIdProto,"
    " 10 domain string, 13 overload string, 12 *value_info ValueInfoProto, 14 *metadata_props StringStringEntryProto",
    "DeviceConfigurationProto": "1 name string, 2 num_devices int32, 3 *device string",
    "NodeProto": "1 *input string, 2 *output string, 3 name string, 4 op_type string, 7 domain string,"
    " 8 overload string, 5 *attribute AttributeProto, 6 doc_string string, 9 *metadata_props StringStringEntryProto,"
    " 10 *device_configurations NodeDeviceConfigurationProto",
    "TensorProto": "1 *dims int64, 2 data_type int32, 3 segment TensorProto.Segment, 4 *float_data float,"
    " 5 *int32_data int32, 6 *string_data bytes, 7 *int64_data int64, 8 name string, 12 doc_string string,"
    " 9 raw_data bytes, 13 *external_data StringStringEntryProto, 14 data_location enum1, 10 *double_data double,"
    " 11 *uint64_data uint64, 16 *metadata_props StringStringEntryProto",
    "SparseTensorProto": "1 values TensorProto, 2 indices TensorProto, 3 *dims int64",
    "ValueInfoProto": "1 name string, 2 type TypeProto, 3 doc_string string, 4 *metadata_props StringStringEntryProto",
    "TensorAnnotation": "1 tensor_name string, 2 *quant_parameter_tensor_names StringStringEntryProto",
    "AttributeProto": "1 name string, 21 ref_attr_name string, 13 doc_string string, 20 type enum14, 2 f float,"
    " 3 i int64, 4 s bytes, 5 t TensorProto, 6 g GraphProto, 22 sparse_tensor SparseTensorProto, 14 tp TypeProto,"
    " 7 *floats float, 8 *ints int64, 9 *strings bytes, 10 *tensors TensorProto, 11 *graphs GraphProto,"
    " 23 *sparse_tensors SparseTensorProto, 15 *type_protos TypeProto",
    "NodeDeviceConfigurationProto": "1 configuration_id string, 2 *sharding_spec ShardingSpecProto,"
    " 3 pipeline_stage int32",
    "TensorProto.Segment": "1 begin int64, 2 end int64",
    "TypeProto": "1 tensor_type TypeProto.Tensor=, 4 sequence_type TypeProto.Sequence=, 5 map_type TypeProto.Map=,"
    " 9 optional_type TypeProto.Optional=, 8 sparse_tensor_type TypeProto.SparseTensor=,"
    " 7 opaque_type TypeProto.Opaque=, 6 denotation string",
    "ShardingSpecProto": "1 tensor_name string, 2 *device int64,"
    " 3 *index_to_device_group_map IntIntListEntryProto, 4 *sharded_dim ShardedDimProto",
    "TypeProto.Tensor": "1 elem_type int32, 2 shape TensorShapeProto",
    "TypeProto.Sequence": "1 elem_type TypeProto",
    "TypeProto.Map": "1 key_type int32, 2 value_type TypeProto",
    "TypeProto.Optional": "1 elem_type TypeProto",
    "TypeProto.SparseTensor": "1 elem_type int32, 2 shape TensorShapeProto",
    "TypeProto.Opaque": "1 domain string, 2 name string",
    "IntIntListEntryProto": "1 key int64, 2 *value int64",
    "ShardedDimProto": "1 axis int64, 2 *simple_sharding SimpleShardedDimProto",
    "TensorShapeProto": "1 *dim TensorShapeProto.Dimension",
    "SimpleShardedDimProto": "1 dim_value int64=, 2 dim_param string=, 3 num_shards int64",
    "TensorShapeProto.Dimension": "1 dim_value int64=, 2 dim_param string=, 3 denotation string",
}
_DEFAULTS: dict[str, Any] = {"string": "", "bytes": b"", "float": 0.0, "double": 0.0}  # all others: 0


class Field(NamedTuple):
    """A field of a message.

    Attributes
    ----------
    name : str
    kind : str
        A type of protocol buffers, or "message"; "enum14" is an enumeration from 0 to 14; other values are unknown.
    repeated : bool
    message : type[Record] or None
    beside : tuple of str
        Other members of the same oneof, which setting this field removes.
    """

    name: str
    kind: str
    repeated: bool
    message: type[Record] | None
    beside: tuple[str, ...]


class Record:
    """A message. Its fields are attributes: set fields of the instance, defaults of the class."""

    FIELDS: dict[int, Field] = {}

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__} has no field {name!r}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def HasField(self, name: str) -> bool:
        """Whether a field that is not repeated is set; named as in the package onnx."""
        return name in vars(self)

    def changed(self, **fields: Any) -> Record:
        """Return a copy with these fields changed; None removes a field."""
        merged = {**vars(self), **fields}
        return type(self)(**{name: value for name, value in merged.items() if value is not None})


MESSAGES: dict[str, type[Record]] = {name: type(name, (Record,), {}) for name in _MESSAGES}


def _define(name: str, text: str) -> None:
    rows = [entry.split() for entry in text.split(",")]
    alone = [field for _, field, kind in rows if kind.endswith("=")]
    fields = {}
    for number, field, kind in rows:
        beside = tuple(other for other in alone if other != field) if kind.endswith("=") else ()
        repeated, field, kind = field.startswith("*"), field.lstrip("*"), kind.rstrip("=")
        message = MESSAGES.get(kind)
        fields[int(number)] = Field(field, "message" if message else kind, repeated, message, beside)
        setattr(MESSAGES[name], field, () if repeated else message() if message else _DEFAULTS.get(kind, 0))
    MESSAGES[name].FIELDS = fields


for _name, _text in _MESSAGES.items():
    _define(_name, _text)

AttributeProto: Any = MESSAGES["AttributeProto"]
FunctionProto: Any = MESSAGES["FunctionProto"]
GraphProto: Any = MESSAGES["GraphProto"]
ModelProto: Any = MESSAGES["ModelProto"]
NodeProto: Any = MESSAGES["NodeProto"]
TensorProto: Any = MESSAGES["TensorProto"]

FLOAT, INT, STRING, TENSOR, GRAPH, FLOATS, INTS, STRINGS, TENSORS, GRAPHS = range(1, 11)  # attribute types
TYPE_PROTO = 13
EXTERNAL = 1  # data_location of a tensor whose data are in another file
