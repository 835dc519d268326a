"""Models by name: built-in networks, and users' own."""

from .held import HeldTensors as HeldTensors
from .personal import personal_arrays as personal_arrays
from .registry import (
    MODELS as MODELS,
    arrays_of as arrays_of,
    build as build,
    build_user_defined as build_user_defined,
    check_arrays as check_arrays,
    choose_output as choose_output,
    float_buffers as float_buffers,
    frozen_parameters as frozen_parameters,
    maker_of as maker_of,
    on_processor as on_processor,
    sendable as sendable,
    shared_parameters as shared_parameters,
)
