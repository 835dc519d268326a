"""Models by name: built-in networks, and users' own."""

from .registry import MODELS as MODELS
from .registry import arrays_of as arrays_of
from .registry import build as build
from .registry import build_user_defined as build_user_defined
from .registry import check_arrays as check_arrays
from .registry import choose_output as choose_output
from .registry import float_buffers as float_buffers
from .registry import frozen_parameters as frozen_parameters
from .registry import maker_of as maker_of
from .registry import on_processor as on_processor
from .registry import sendable as sendable
from .registry import shared_parameters as shared_parameters
