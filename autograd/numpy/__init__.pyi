"""Written by ``python -m autograd stubs`` with NumPy 2.4; a test fails when it is out of date."""

from typing import Any, overload

from collections.abc import Sequence
from numpy import False_ as False_
from numpy import ScalarType as ScalarType
from numpy import True_ as True_
from numpy import __array_namespace_info__ as __array_namespace_info__
from numpy import __version__ as __version__
from numpy import allclose as allclose
from numpy import apply_along_axis as apply_along_axis
from numpy import apply_over_axes as apply_over_axes
from numpy import arange as arange
from numpy import argwhere as argwhere
from numpy import array2string as array2string
from numpy import array_equal as array_equal
from numpy import array_equiv as array_equiv
from numpy import array_repr as array_repr
from numpy import array_str as array_str
from numpy import asarray_chkfinite as asarray_chkfinite
from numpy import asfortranarray as asfortranarray
from numpy import asmatrix as asmatrix
from numpy import bartlett as bartlett
from numpy import base_repr as base_repr
from numpy import binary_repr as binary_repr
from numpy import bincount as bincount
from numpy import bitwise_count as bitwise_count
from numpy import blackman as blackman
from numpy import bmat as bmat
from numpy import bool as bool
from numpy import bool_ as bool_
from numpy import broadcast as broadcast
from numpy import broadcast_shapes as broadcast_shapes
from numpy import busday_count as busday_count
from numpy import busday_offset as busday_offset
from numpy import busdaycalendar as busdaycalendar
from numpy import byte as byte
from numpy import bytes_ as bytes_
from numpy import can_cast as can_cast
from numpy import cdouble as cdouble
from numpy import char as char
from numpy import character as character
from numpy import clongdouble as clongdouble
from numpy import common_type as common_type
from numpy import complex128 as complex128
from numpy import complex256 as complex256
from numpy import complex64 as complex64
from numpy import complexfloating as complexfloating
from numpy import convolve as convolve
from numpy import copyto as copyto
from numpy import core as core
from numpy import corrcoef as corrcoef
from numpy import correlate as correlate
from numpy import cov as cov
from numpy import csingle as csingle
from numpy import ctypeslib as ctypeslib
from numpy import datetime64 as datetime64
from numpy import datetime_as_string as datetime_as_string
from numpy import datetime_data as datetime_data
from numpy import diag_indices as diag_indices
from numpy import diag_indices_from as diag_indices_from
from numpy import digitize as digitize
from numpy import double as double
from numpy import dtype as dtype
from numpy import dtypes as dtypes
from numpy import e as e
from numpy import einsum_path as einsum_path
from numpy import emath as emath
from numpy import empty as empty
from numpy import empty_like as empty_like
from numpy import errstate as errstate
from numpy import euler_gamma as euler_gamma
from numpy import exceptions as exceptions
from numpy import eye as eye
from numpy import f2py as f2py
from numpy import fill_diagonal as fill_diagonal
from numpy import finfo as finfo
from numpy import flatiter as flatiter
from numpy import flatnonzero as flatnonzero
from numpy import flexible as flexible
from numpy import float128 as float128
from numpy import float16 as float16
from numpy import float32 as float32
from numpy import float64 as float64
from numpy import floating as floating
from numpy import format_float_positional as format_float_positional
from numpy import format_float_scientific as format_float_scientific
from numpy import frexp as frexp
from numpy import from_dlpack as from_dlpack
from numpy import frombuffer as frombuffer
from numpy import fromfile as fromfile
from numpy import fromfunction as fromfunction
from numpy import fromiter as fromiter
from numpy import frompyfunc as frompyfunc
from numpy import fromregex as fromregex
from numpy import fromstring as fromstring
from numpy import gcd as gcd
from numpy import generic as generic
from numpy import genfromtxt as genfromtxt
from numpy import geomspace as geomspace
from numpy import get_include as get_include
from numpy import get_printoptions as get_printoptions
from numpy import getbufsize as getbufsize
from numpy import geterr as geterr
from numpy import geterrcall as geterrcall
from numpy import half as half
from numpy import hamming as hamming
from numpy import hanning as hanning
from numpy import histogram as histogram
from numpy import histogram2d as histogram2d
from numpy import histogram_bin_edges as histogram_bin_edges
from numpy import histogramdd as histogramdd
from numpy import i0 as i0
from numpy import identity as identity
from numpy import iinfo as iinfo
from numpy import index_exp as index_exp
from numpy import indices as indices
from numpy import inexact as inexact
from numpy import inf as inf
from numpy import info as info
from numpy import insert as insert
from numpy import int16 as int16
from numpy import int32 as int32
from numpy import int64 as int64
from numpy import int8 as int8
from numpy import int_ as int_
from numpy import intc as intc
from numpy import integer as integer
from numpy import intersect1d as intersect1d
from numpy import intp as intp
from numpy import is_busday as is_busday
from numpy import iscomplexobj as iscomplexobj
from numpy import isdtype as isdtype
from numpy import isfortran as isfortran
from numpy import isin as isin
from numpy import isnat as isnat
from numpy import isrealobj as isrealobj
from numpy import isscalar as isscalar
from numpy import issubdtype as issubdtype
from numpy import iterable as iterable
from numpy import ix_ as ix_
from numpy import kaiser as kaiser
from numpy import lcm as lcm
from numpy import lexsort as lexsort
from numpy import lib as lib
from numpy import little_endian as little_endian
from numpy import load as load
from numpy import loadtxt as loadtxt
from numpy import long as long
from numpy import longdouble as longdouble
from numpy import longlong as longlong
from numpy import ma as ma
from numpy import mask_indices as mask_indices
from numpy import matrix as matrix
from numpy import matvec as matvec
from numpy import may_share_memory as may_share_memory
from numpy import memmap as memmap
from numpy import mgrid as mgrid
from numpy import min_scalar_type as min_scalar_type
from numpy import mintypecode as mintypecode
from numpy import nan as nan
from numpy import nanargmax as nanargmax
from numpy import nanargmin as nanargmin
from numpy import nanmedian as nanmedian
from numpy import nanpercentile as nanpercentile
from numpy import nanquantile as nanquantile
from numpy import ndarray as ndarray
from numpy import ndenumerate as ndenumerate
from numpy import ndim as ndim
from numpy import ndindex as ndindex
from numpy import nditer as nditer
from numpy import nested_iters as nested_iters
from numpy import newaxis as newaxis
from numpy import nextafter as nextafter
from numpy import nonzero as nonzero
from numpy import number as number
from numpy import object_ as object_
from numpy import ogrid as ogrid
from numpy import ones as ones
from numpy import ones_like as ones_like
from numpy import packbits as packbits
from numpy import pi as pi
from numpy import place as place
from numpy import poly as poly
from numpy import poly1d as poly1d
from numpy import polyadd as polyadd
from numpy import polyder as polyder
from numpy import polydiv as polydiv
from numpy import polyfit as polyfit
from numpy import polyint as polyint
from numpy import polymul as polymul
from numpy import polynomial as polynomial
from numpy import polysub as polysub
from numpy import polyval as polyval
from numpy import printoptions as printoptions
from numpy import promote_types as promote_types
from numpy import put as put
from numpy import put_along_axis as put_along_axis
from numpy import putmask as putmask
from numpy import ravel_multi_index as ravel_multi_index
from numpy import rec as rec
from numpy import recarray as recarray
from numpy import record as record
from numpy import require as require
from numpy import result_type as result_type
from numpy import roots as roots
from numpy import s_ as s_
from numpy import save as save
from numpy import savetxt as savetxt
from numpy import savez as savez
from numpy import savez_compressed as savez_compressed
from numpy import sctypeDict as sctypeDict
from numpy import searchsorted as searchsorted
from numpy import set_printoptions as set_printoptions
from numpy import setbufsize as setbufsize
from numpy import setdiff1d as setdiff1d
from numpy import seterr as seterr
from numpy import seterrcall as seterrcall
from numpy import setxor1d as setxor1d
from numpy import shares_memory as shares_memory
from numpy import short as short
from numpy import show_config as show_config
from numpy import show_runtime as show_runtime
from numpy import signedinteger as signedinteger
from numpy import single as single
from numpy import spacing as spacing
from numpy import str_ as str_
from numpy import strings as strings
from numpy import test as test
from numpy import testing as testing
from numpy import timedelta64 as timedelta64
from numpy import tri as tri
from numpy import tril_indices as tril_indices
from numpy import tril_indices_from as tril_indices_from
from numpy import trim_zeros as trim_zeros
from numpy import triu_indices as triu_indices
from numpy import triu_indices_from as triu_indices_from
from numpy import typecodes as typecodes
from numpy import typename as typename
from numpy import typing as typing
from numpy import ubyte as ubyte
from numpy import ufunc as ufunc
from numpy import uint as uint
from numpy import uint16 as uint16
from numpy import uint32 as uint32
from numpy import uint64 as uint64
from numpy import uint8 as uint8
from numpy import uintc as uintc
from numpy import uintp as uintp
from numpy import ulong as ulong
from numpy import ulonglong as ulonglong
from numpy import union1d as union1d
from numpy import unique as unique
from numpy import unique_all as unique_all
from numpy import unique_counts as unique_counts
from numpy import unique_inverse as unique_inverse
from numpy import unique_values as unique_values
from numpy import unpackbits as unpackbits
from numpy import unravel_index as unravel_index
from numpy import unsignedinteger as unsignedinteger
from numpy import ushort as ushort
from numpy import vander as vander
from numpy import vecmat as vecmat
from numpy import vectorize as vectorize
from numpy import void as void
from numpy import zeros as zeros
from numpy import zeros_like as zeros_like
from autograd import builtins as builtins
from autograd.numpy import fft as fft
from autograd.numpy import linalg as linalg
from autograd.numpy import random as random
from autograd.engine.tensor import Tensor

@overload
def abs(x: Tensor, /) -> Tensor: ...
@overload
def abs(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def absolute(x: Tensor, /) -> Tensor: ...
@overload
def absolute(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def acos(x: Tensor, /) -> Tensor: ...
@overload
def acos(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def acosh(x: Tensor, /) -> Tensor: ...
@overload
def acosh(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def add(
    x1: Tensor,
    x2: Any,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Tensor: ...
@overload
def add(
    x1: Any,
    x2: Tensor,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Tensor: ...
@overload
def add(
    x1: Any,
    x2: Any,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Any: ...
@overload
def all(a: Tensor, axis: Any = None, out: Any = None, keepdims: Any = False, **words: Any) -> Tensor: ...
@overload
def all(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False, **words: Any) -> Any: ...
@overload
def amax(a: Tensor, axis: Any = None, out: Any = None, keepdims: Any = False, **words: Any) -> Tensor: ...
@overload
def amax(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False, **words: Any) -> Any: ...
@overload
def amin(a: Tensor, axis: Any = None, out: Any = None, keepdims: Any = False, **words: Any) -> Tensor: ...
@overload
def amin(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False, **words: Any) -> Any: ...
@overload
def angle(z: Tensor, deg: Any = False) -> Tensor: ...
@overload
def angle(z: Any, deg: Any = False) -> Any: ...
@overload
def any(a: Tensor, axis: Any = None, out: Any = None, keepdims: Any = False, **words: Any) -> Tensor: ...
@overload
def any(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False, **words: Any) -> Any: ...
@overload
def append(arr: Tensor, values: Any, axis: Any = None) -> Tensor: ...
@overload
def append(arr: Any, values: Tensor, axis: Any = None) -> Tensor: ...
@overload
def append(arr: Any, values: Any, axis: Any = None) -> Any: ...
@overload
def arccos(x: Tensor, /) -> Tensor: ...
@overload
def arccos(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def arccosh(x: Tensor, /) -> Tensor: ...
@overload
def arccosh(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def arcsin(x: Tensor, /) -> Tensor: ...
@overload
def arcsin(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def arcsinh(x: Tensor, /) -> Tensor: ...
@overload
def arcsinh(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def arctan(x: Tensor, /) -> Tensor: ...
@overload
def arctan(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def arctan2(y: Tensor, x: Any, /) -> Tensor: ...
@overload
def arctan2(y: Any, x: Tensor, /) -> Tensor: ...
@overload
def arctan2(y: Any, x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def arctanh(x: Tensor, /) -> Tensor: ...
@overload
def arctanh(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def argmax(a: Tensor, axis: Any = None, out: Any = None, *, keepdims: Any = False, **words: Any) -> Tensor: ...
@overload
def argmax(a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = False, **words: Any) -> Any: ...
@overload
def argmin(a: Tensor, axis: Any = None, out: Any = None, *, keepdims: Any = False, **words: Any) -> Tensor: ...
@overload
def argmin(a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = False, **words: Any) -> Any: ...
@overload
def argpartition(a: Tensor, kth: Any, axis: Any = -1, kind: Any = "introselect", order: Any = None) -> Tensor: ...
@overload
def argpartition(a: Any, kth: Any, axis: Any = -1, kind: Any = "introselect", order: Any = None) -> Any: ...
@overload
def argsort(a: Tensor, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Tensor: ...
@overload
def argsort(a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Any: ...
@overload
def around(a: Tensor, decimals: Any = 0) -> Tensor: ...
@overload
def around(a: Any, decimals: Any = 0) -> Any: ...
@overload
def array(
    object: Tensor | Sequence[Tensor] | Sequence[Sequence[Tensor]],
    dtype: Any = None,
    *,
    copy: Any = True,
    order: Any = None,
    subok: Any = False,
    ndmin: Any = 0,
) -> Tensor: ...
@overload
def array(
    object: Any, dtype: Any = None, *, copy: Any = True, order: Any = None, subok: Any = False, ndmin: Any = 0
) -> Any: ...
@overload
def array_split(ary: Tensor, indices_or_sections: Any, axis: Any = 0) -> list[Tensor]: ...
@overload
def array_split(ary: Any, indices_or_sections: Any, axis: Any = 0) -> list[Any]: ...
@overload
def asanyarray(a: Tensor, dtype: Any = None, order: Any = None, **words: Any) -> Tensor: ...
@overload
def asanyarray(a: Any, dtype: Any = None, order: Any = None, **words: Any) -> Any: ...
@overload
def asarray(a: Tensor, dtype: Any = None, order: Any = None, **words: Any) -> Tensor: ...
@overload
def asarray(a: Any, dtype: Any = None, order: Any = None, **words: Any) -> Any: ...
@overload
def ascontiguousarray(a: Tensor, dtype: Any = None, order: Any = None, **words: Any) -> Tensor: ...
@overload
def ascontiguousarray(a: Any, dtype: Any = None, order: Any = None, **words: Any) -> Any: ...
@overload
def asin(x: Tensor, /) -> Tensor: ...
@overload
def asin(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def asinh(x: Tensor, /) -> Tensor: ...
@overload
def asinh(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def astype(x: Tensor, dtype: Any, /, *, copy: Any = True, device: Any = None) -> Tensor: ...
@overload
def astype(x: Any, dtype: Any, /, *, copy: Any = True, device: Any = None) -> Any: ...
@overload
def atan(x: Tensor, /) -> Tensor: ...
@overload
def atan(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def atan2(y: Tensor, x: Any, /) -> Tensor: ...
@overload
def atan2(y: Any, x: Tensor, /) -> Tensor: ...
@overload
def atan2(y: Any, x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def atanh(x: Tensor, /) -> Tensor: ...
@overload
def atanh(x: Any, /, *args: Any, **words: Any) -> Any: ...
def atleast_1d(*arys: Any) -> Any: ...
def atleast_2d(*arys: Any) -> Any: ...
def atleast_3d(*arys: Any) -> Any: ...
@overload
def average(
    a: Tensor, axis: Any = None, weights: Any = None, returned: Any = False, *, keepdims: Any = False
) -> Tensor: ...
@overload
def average(a: Any, axis: Any = None, weights: Any = None, returned: Any = False, *, keepdims: Any = False) -> Any: ...
@overload
def bitwise_and(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def bitwise_and(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def bitwise_and(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def bitwise_invert(x: Tensor, /) -> Tensor: ...
@overload
def bitwise_invert(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def bitwise_left_shift(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def bitwise_left_shift(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def bitwise_left_shift(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def bitwise_not(x: Tensor, /) -> Tensor: ...
@overload
def bitwise_not(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def bitwise_or(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def bitwise_or(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def bitwise_or(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def bitwise_right_shift(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def bitwise_right_shift(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def bitwise_right_shift(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def bitwise_xor(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def bitwise_xor(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def bitwise_xor(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def block(arrays: Tensor | Sequence[Tensor] | Sequence[Sequence[Tensor]]) -> Tensor: ...
@overload
def block(arrays: Any) -> Any: ...
@overload
def broadcast_arrays(*args: Tensor, subok: Any = False) -> tuple[Tensor, ...]: ...
@overload
def broadcast_arrays(*args: Any, subok: Any = False) -> tuple[Any, ...]: ...
@overload
def broadcast_to(array: Tensor, shape: Any, subok: Any = False) -> Tensor: ...
@overload
def broadcast_to(array: Any, shape: Any, subok: Any = False) -> Any: ...

c_: Any

@overload
def cbrt(x: Tensor, /) -> Tensor: ...
@overload
def cbrt(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def ceil(x: Tensor, /) -> Tensor: ...
@overload
def ceil(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def choose(a: Tensor, choices: Any, out: Any = None, mode: Any = "raise") -> Tensor: ...
@overload
def choose(
    a: Any, choices: Tensor | Sequence[Tensor] | Sequence[Sequence[Tensor]], out: Any = None, mode: Any = "raise"
) -> Tensor: ...
@overload
def choose(a: Any, choices: Any, out: Any = None, mode: Any = "raise") -> Any: ...
@overload
def clip(
    a: Tensor, a_min: Any = ..., a_max: Any = ..., *, min: Any = None, max: Any = None, out: Any = None
) -> Tensor: ...
@overload
def clip(a: Any, a_min: Any = ..., a_max: Any = ..., *, min: Any = None, max: Any = None, out: Any = None) -> Any: ...
@overload
def column_stack(tup: Tensor | Sequence[Tensor] | Sequence[Sequence[Tensor]]) -> Tensor: ...
@overload
def column_stack(tup: Any) -> Any: ...
@overload
def compress(condition: Tensor, a: Any, axis: Any = None, out: Any = None) -> Tensor: ...
@overload
def compress(condition: Any, a: Tensor, axis: Any = None, out: Any = None) -> Tensor: ...
@overload
def compress(condition: Any, a: Any, axis: Any = None, out: Any = None) -> Any: ...
@overload
def concat(
    arrays: Tensor | Sequence[Tensor] | Sequence[Sequence[Tensor]],
    axis: Any = 0,
    out: Any = None,
    *,
    dtype: Any = None,
    casting: Any = "same_kind",
    dim: Any = None,
) -> Tensor: ...
@overload
def concat(
    arrays: Any, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: Any = "same_kind", dim: Any = None
) -> Any: ...
@overload
def concatenate(
    arrays: Tensor | Sequence[Tensor] | Sequence[Sequence[Tensor]],
    axis: Any = 0,
    out: Any = None,
    *,
    dtype: Any = None,
    casting: Any = "same_kind",
    dim: Any = None,
) -> Tensor: ...
@overload
def concatenate(
    arrays: Any, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: Any = "same_kind", dim: Any = None
) -> Any: ...
@overload
def conj(x: Tensor) -> Tensor: ...
@overload
def conj(x: Any) -> Any: ...
@overload
def conjugate(x: Tensor) -> Tensor: ...
@overload
def conjugate(x: Any) -> Any: ...
@overload
def copy(a: Tensor, order: Any = "K", subok: Any = False) -> Tensor: ...
@overload
def copy(a: Any, order: Any = "K", subok: Any = False) -> Any: ...
@overload
def copysign(x1: Tensor, x2: Any) -> Tensor: ...
@overload
def copysign(x1: Any, x2: Tensor) -> Tensor: ...
@overload
def copysign(x1: Any, x2: Any) -> Any: ...
@overload
def cos(x: Tensor, /) -> Tensor: ...
@overload
def cos(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def cosh(x: Tensor, /) -> Tensor: ...
@overload
def cosh(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def count_nonzero(a: Tensor, axis: Any = None, out: Any = None, keepdims: Any = False, **words: Any) -> Tensor: ...
@overload
def count_nonzero(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False, **words: Any) -> Any: ...
@overload
def cross(a: Tensor, b: Any, axisa: Any = -1, axisb: Any = -1, axisc: Any = -1, axis: Any = None) -> Tensor: ...
@overload
def cross(a: Any, b: Tensor, axisa: Any = -1, axisb: Any = -1, axisc: Any = -1, axis: Any = None) -> Tensor: ...
@overload
def cross(a: Any, b: Any, axisa: Any = -1, axisb: Any = -1, axisc: Any = -1, axis: Any = None) -> Any: ...
@overload
def cumprod(a: Tensor, axis: Any = None, dtype: Any = None, out: Any = None) -> Tensor: ...
@overload
def cumprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any: ...
@overload
def cumsum(a: Tensor, axis: Any = None, dtype: Any = None, out: Any = None) -> Tensor: ...
@overload
def cumsum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any: ...
@overload
def cumulative_prod(
    x: Tensor, /, *, axis: Any = None, dtype: Any = None, out: Any = None, include_initial: Any = False
) -> Tensor: ...
@overload
def cumulative_prod(
    x: Any, /, *, axis: Any = None, dtype: Any = None, out: Any = None, include_initial: Any = False
) -> Any: ...
@overload
def cumulative_sum(
    x: Tensor, /, *, axis: Any = None, dtype: Any = None, out: Any = None, include_initial: Any = False
) -> Tensor: ...
@overload
def cumulative_sum(
    x: Any, /, *, axis: Any = None, dtype: Any = None, out: Any = None, include_initial: Any = False
) -> Any: ...
@overload
def deg2rad(x: Tensor, /) -> Tensor: ...
@overload
def deg2rad(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def degrees(x: Tensor, /) -> Tensor: ...
@overload
def degrees(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def delete(arr: Tensor, obj: Any, axis: Any = None) -> Tensor: ...
@overload
def delete(arr: Any, obj: Any, axis: Any = None) -> Any: ...
@overload
def diag(v: Tensor, k: Any = 0) -> Tensor: ...
@overload
def diag(v: Any, k: Any = 0) -> Any: ...
@overload
def diagflat(v: Tensor, k: Any = 0) -> Tensor: ...
@overload
def diagflat(v: Any, k: Any = 0) -> Any: ...
@overload
def diagonal(a: Tensor, offset: Any = 0, axis1: Any = 0, axis2: Any = 1) -> Tensor: ...
@overload
def diagonal(a: Any, offset: Any = 0, axis1: Any = 0, axis2: Any = 1) -> Any: ...
@overload
def diff(a: Tensor, n: Any = 1, axis: Any = -1, prepend: Any = None, append: Any = None) -> Tensor: ...
@overload
def diff(a: Any, n: Any = 1, axis: Any = -1, prepend: Any = None, append: Any = None) -> Any: ...
@overload
def divide(
    x1: Tensor,
    x2: Any,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Tensor: ...
@overload
def divide(
    x1: Any,
    x2: Tensor,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Tensor: ...
@overload
def divide(
    x1: Any,
    x2: Any,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Any: ...
@overload
def divmod(x1: Tensor, x2: Any) -> tuple[Tensor, Tensor]: ...
@overload
def divmod(x1: Any, x2: Tensor) -> tuple[Tensor, Tensor]: ...
@overload
def divmod(x1: Any, x2: Any) -> tuple[Any, Any]: ...
@overload
def dot(a: Tensor, b: Any, out: Any = None) -> Tensor: ...
@overload
def dot(a: Any, b: Tensor, out: Any = None) -> Tensor: ...
@overload
def dot(a: Any, b: Any, out: Any = None) -> Any: ...
@overload
def dsplit(ary: Tensor, indices_or_sections: Any) -> list[Tensor]: ...
@overload
def dsplit(ary: Any, indices_or_sections: Any) -> list[Any]: ...
@overload
def dstack(tup: Tensor | Sequence[Tensor] | Sequence[Sequence[Tensor]]) -> Tensor: ...
@overload
def dstack(tup: Any) -> Any: ...
@overload
def ediff1d(ary: Tensor, to_end: Any = None, to_begin: Any = None) -> Tensor: ...
@overload
def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any: ...
@overload
def einsum(subscripts: str, x: Tensor, /, *operands: Any, optimize: Any = False, **words: Any) -> Tensor: ...
@overload
def einsum(subscripts: str, x: Any, y: Tensor, /, *operands: Any, optimize: Any = False, **words: Any) -> Tensor: ...
@overload
def einsum(*operands: Any, optimize: Any = False, **words: Any) -> Any: ...
@overload
def equal(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def equal(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def equal(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def exp(x: Tensor, /) -> Tensor: ...
@overload
def exp(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def exp2(x: Tensor, /) -> Tensor: ...
@overload
def exp2(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def expand_dims(a: Tensor, axis: Any = None, *, dim: Any = None) -> Tensor: ...
@overload
def expand_dims(a: Any, axis: Any = None, *, dim: Any = None) -> Any: ...
@overload
def expm1(x: Tensor, /) -> Tensor: ...
@overload
def expm1(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def extract(condition: Tensor, arr: Any) -> Tensor: ...
@overload
def extract(condition: Any, arr: Tensor) -> Tensor: ...
@overload
def extract(condition: Any, arr: Any) -> Any: ...
@overload
def fabs(x: Tensor) -> Tensor: ...
@overload
def fabs(x: Any) -> Any: ...
@overload
def fix(x: Tensor) -> Tensor: ...
@overload
def fix(x: Any) -> Any: ...
@overload
def flip(m: Tensor, axis: Any = None) -> Tensor: ...
@overload
def flip(m: Any, axis: Any = None) -> Any: ...
@overload
def fliplr(m: Tensor) -> Tensor: ...
@overload
def fliplr(m: Any) -> Any: ...
@overload
def flipud(m: Tensor) -> Tensor: ...
@overload
def flipud(m: Any) -> Any: ...
@overload
def float_power(x1: Tensor, x2: Any) -> Tensor: ...
@overload
def float_power(x1: Any, x2: Tensor) -> Tensor: ...
@overload
def float_power(x1: Any, x2: Any) -> Any: ...
@overload
def floor(x: Tensor, /) -> Tensor: ...
@overload
def floor(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def floor_divide(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def floor_divide(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def floor_divide(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def fmax(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def fmax(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def fmax(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def fmin(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def fmin(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def fmin(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def fmod(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def fmod(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def fmod(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def full(shape: Any, fill_value: Tensor, dtype: Any = None, order: Any = "C", **words: Any) -> Tensor: ...
@overload
def full(shape: Any, fill_value: Any, dtype: Any = None, order: Any = "C", **words: Any) -> Any: ...
@overload
def full_like(
    a: Tensor, fill_value: Any, dtype: Any = None, order: Any = "K", subok: Any = True, shape: Any = None
) -> Tensor: ...
@overload
def full_like(
    a: Any, fill_value: Tensor, dtype: Any = None, order: Any = "K", subok: Any = True, shape: Any = None
) -> Tensor: ...
@overload
def full_like(
    a: Any, fill_value: Any, dtype: Any = None, order: Any = "K", subok: Any = True, shape: Any = None
) -> Any: ...
def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: Any = 1) -> Any: ...
@overload
def greater(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def greater(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def greater(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def greater_equal(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def greater_equal(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def greater_equal(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def heaviside(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def heaviside(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def heaviside(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def hsplit(ary: Tensor, indices_or_sections: Any) -> list[Tensor]: ...
@overload
def hsplit(ary: Any, indices_or_sections: Any) -> list[Any]: ...
@overload
def hstack(
    tup: Tensor | Sequence[Tensor] | Sequence[Sequence[Tensor]], *, dtype: Any = None, casting: Any = "same_kind"
) -> Tensor: ...
@overload
def hstack(tup: Any, *, dtype: Any = None, casting: Any = "same_kind") -> Any: ...
@overload
def hypot(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def hypot(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def hypot(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def imag(val: Tensor) -> Tensor: ...
@overload
def imag(val: Any) -> Any: ...
@overload
def inner(a: Tensor, b: Any) -> Tensor: ...
@overload
def inner(a: Any, b: Tensor) -> Tensor: ...
@overload
def inner(a: Any, b: Any) -> Any: ...
@overload
def interp(x: Tensor, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Tensor: ...
@overload
def interp(x: Any, xp: Tensor, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Tensor: ...
@overload
def interp(x: Any, xp: Any, fp: Tensor, left: Any = None, right: Any = None, period: Any = None) -> Tensor: ...
@overload
def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any: ...
@overload
def invert(x: Tensor, /) -> Tensor: ...
@overload
def invert(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def isclose(a: Tensor, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: Any = False) -> Tensor: ...
@overload
def isclose(a: Any, b: Tensor, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: Any = False) -> Tensor: ...
@overload
def isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: Any = False) -> Any: ...
@overload
def iscomplex(x: Tensor, /) -> Tensor: ...
@overload
def iscomplex(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def isfinite(x: Tensor, /) -> Tensor: ...
@overload
def isfinite(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def isinf(x: Tensor, /) -> Tensor: ...
@overload
def isinf(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def isnan(x: Tensor, /) -> Tensor: ...
@overload
def isnan(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def isneginf(x: Tensor, /) -> Tensor: ...
@overload
def isneginf(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def isposinf(x: Tensor, /) -> Tensor: ...
@overload
def isposinf(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def isreal(x: Tensor, /) -> Tensor: ...
@overload
def isreal(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def kron(a: Tensor, b: Any) -> Tensor: ...
@overload
def kron(a: Any, b: Tensor) -> Tensor: ...
@overload
def kron(a: Any, b: Any) -> Any: ...
@overload
def ldexp(x1: Tensor, x2: Any) -> Tensor: ...
@overload
def ldexp(x1: Any, x2: Tensor) -> Tensor: ...
@overload
def ldexp(x1: Any, x2: Any) -> Any: ...
@overload
def left_shift(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def left_shift(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def left_shift(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def less(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def less(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def less(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def less_equal(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def less_equal(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def less_equal(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def linspace(
    start: Tensor,
    stop: Any,
    num: Any = 50,
    endpoint: Any = True,
    retstep: Any = False,
    dtype: Any = None,
    axis: Any = 0,
) -> Tensor: ...
@overload
def linspace(
    start: Any,
    stop: Tensor,
    num: Any = 50,
    endpoint: Any = True,
    retstep: Any = False,
    dtype: Any = None,
    axis: Any = 0,
) -> Tensor: ...
@overload
def linspace(
    start: Any, stop: Any, num: Any = 50, endpoint: Any = True, retstep: Any = False, dtype: Any = None, axis: Any = 0
) -> Any: ...
@overload
def log(x: Tensor, /) -> Tensor: ...
@overload
def log(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def log10(x: Tensor, /) -> Tensor: ...
@overload
def log10(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def log1p(x: Tensor, /) -> Tensor: ...
@overload
def log1p(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def log2(x: Tensor, /) -> Tensor: ...
@overload
def log2(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def logaddexp(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def logaddexp(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def logaddexp(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def logaddexp2(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def logaddexp2(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def logaddexp2(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def logical_and(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def logical_and(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def logical_and(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def logical_not(x: Tensor, /) -> Tensor: ...
@overload
def logical_not(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def logical_or(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def logical_or(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def logical_or(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def logical_xor(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def logical_xor(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def logical_xor(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def logspace(
    start: Tensor, stop: Any, num: Any = 50, endpoint: Any = True, base: Any = 10.0, dtype: Any = None, axis: Any = 0
) -> Tensor: ...
@overload
def logspace(
    start: Any, stop: Tensor, num: Any = 50, endpoint: Any = True, base: Any = 10.0, dtype: Any = None, axis: Any = 0
) -> Tensor: ...
@overload
def logspace(
    start: Any, stop: Any, num: Any = 50, endpoint: Any = True, base: Any = 10.0, dtype: Any = None, axis: Any = 0
) -> Any: ...
@overload
def make_diagonal(D: Tensor, offset: Any = 0, axis1: Any = 0, axis2: Any = 1) -> Tensor: ...
@overload
def make_diagonal(D: Any, offset: Any = 0, axis1: Any = 0, axis2: Any = 1) -> Any: ...
@overload
def matmul(
    x1: Tensor,
    x2: Any,
    /,
    out: Any = None,
    *,
    axes: Any = ...,
    axis: Any = ...,
    keepdims: Any = False,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Tensor: ...
@overload
def matmul(
    x1: Any,
    x2: Tensor,
    /,
    out: Any = None,
    *,
    axes: Any = ...,
    axis: Any = ...,
    keepdims: Any = False,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Tensor: ...
@overload
def matmul(
    x1: Any,
    x2: Any,
    /,
    out: Any = None,
    *,
    axes: Any = ...,
    axis: Any = ...,
    keepdims: Any = False,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Any: ...
@overload
def matrix_transpose(x: Tensor) -> Tensor: ...
@overload
def matrix_transpose(x: Any) -> Any: ...
@overload
def max(a: Tensor, axis: Any = None, out: Any = None, keepdims: Any = False, **words: Any) -> Tensor: ...
@overload
def max(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False, **words: Any) -> Any: ...
@overload
def maximum(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def maximum(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def maximum(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def mean(
    a: Tensor, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, **words: Any
) -> Tensor: ...
@overload
def mean(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, **words: Any) -> Any: ...
@overload
def median(
    a: Tensor, axis: Any = None, out: Any = None, overwrite_input: Any = False, keepdims: Any = False
) -> Tensor: ...
@overload
def median(a: Any, axis: Any = None, out: Any = None, overwrite_input: Any = False, keepdims: Any = False) -> Any: ...
@overload
def meshgrid(*xi: Tensor, copy: Any = True, sparse: Any = False, indexing: Any = "xy") -> tuple[Tensor, ...]: ...
@overload
def meshgrid(*xi: Any, copy: Any = True, sparse: Any = False, indexing: Any = "xy") -> tuple[Any, ...]: ...
@overload
def min(a: Tensor, axis: Any = None, out: Any = None, keepdims: Any = False, **words: Any) -> Tensor: ...
@overload
def min(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False, **words: Any) -> Any: ...
@overload
def minimum(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def minimum(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def minimum(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def mod(
    x1: Tensor,
    x2: Any,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Tensor: ...
@overload
def mod(
    x1: Any,
    x2: Tensor,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Tensor: ...
@overload
def mod(
    x1: Any,
    x2: Any,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Any: ...
@overload
def modf(x: Tensor) -> tuple[Tensor, Tensor]: ...
@overload
def modf(x: Any) -> tuple[Any, Any]: ...
@overload
def moveaxis(a: Tensor, source: Any, destination: Any) -> Tensor: ...
@overload
def moveaxis(a: Any, source: Any, destination: Any) -> Any: ...
@overload
def msort(a: Tensor) -> Tensor: ...
@overload
def msort(a: Any) -> Any: ...
@overload
def multiply(
    x1: Tensor,
    x2: Any,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Tensor: ...
@overload
def multiply(
    x1: Any,
    x2: Tensor,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Tensor: ...
@overload
def multiply(
    x1: Any,
    x2: Any,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Any: ...
@overload
def nan_to_num(x: Tensor, copy: Any = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Tensor: ...
@overload
def nan_to_num(x: Any, copy: Any = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any: ...
@overload
def nancumprod(a: Tensor, axis: Any = None, dtype: Any = None, out: Any = None) -> Tensor: ...
@overload
def nancumprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any: ...
@overload
def nancumsum(a: Tensor, axis: Any = None, dtype: Any = None, out: Any = None) -> Tensor: ...
@overload
def nancumsum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any: ...
@overload
def nanmax(a: Tensor, axis: Any = None, out: Any = None, keepdims: Any = False) -> Tensor: ...
@overload
def nanmax(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any: ...
@overload
def nanmean(a: Tensor, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False) -> Tensor: ...
@overload
def nanmean(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False) -> Any: ...
@overload
def nanmin(a: Tensor, axis: Any = None, out: Any = None, keepdims: Any = False) -> Tensor: ...
@overload
def nanmin(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any: ...
@overload
def nanprod(a: Tensor, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False) -> Tensor: ...
@overload
def nanprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False) -> Any: ...
@overload
def nanstd(
    a: Tensor, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False
) -> Tensor: ...
@overload
def nanstd(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False
) -> Any: ...
@overload
def nansum(a: Tensor, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False) -> Tensor: ...
@overload
def nansum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False) -> Any: ...
@overload
def nanvar(
    a: Tensor, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False
) -> Tensor: ...
@overload
def nanvar(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False
) -> Any: ...
@overload
def negative(
    x: Tensor,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Tensor: ...
@overload
def negative(
    x: Any,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Any: ...
@overload
def not_equal(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def not_equal(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def not_equal(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def outer(a: Tensor, b: Any, out: Any = None) -> Tensor: ...
@overload
def outer(a: Any, b: Tensor, out: Any = None) -> Tensor: ...
@overload
def outer(a: Any, b: Any, out: Any = None) -> Any: ...
@overload
def pad(array: Tensor, pad_width: Any, mode: Any = "constant", **words: Any) -> Tensor: ...
@overload
def pad(array: Any, pad_width: Any, mode: Any = "constant", **words: Any) -> Any: ...
@overload
def partition(a: Tensor, kth: Any, axis: Any = -1, kind: Any = "introselect", order: Any = None) -> Tensor: ...
@overload
def partition(a: Any, kth: Any, axis: Any = -1, kind: Any = "introselect", order: Any = None) -> Any: ...
@overload
def percentile(
    a: Tensor,
    q: Any,
    axis: Any = None,
    out: Any = None,
    overwrite_input: Any = False,
    method: Any = "linear",
    keepdims: Any = False,
) -> Tensor: ...
@overload
def percentile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: Any = None,
    overwrite_input: Any = False,
    method: Any = "linear",
    keepdims: Any = False,
) -> Any: ...
@overload
def permute_dims(a: Tensor, axes: Any = None) -> Tensor: ...
@overload
def permute_dims(a: Any, axes: Any = None) -> Any: ...
@overload
def piecewise(x: Tensor, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> Tensor: ...
@overload
def piecewise(x: Any, condlist: Any, funclist: Any, *args: Tensor, **kw: Any) -> Tensor: ...
@overload
def piecewise(x: Any, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> Any: ...
@overload
def positive(x: Tensor) -> Tensor: ...
@overload
def positive(x: Any) -> Any: ...
@overload
def pow(
    x1: Tensor,
    x2: Any,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Tensor: ...
@overload
def pow(
    x1: Any,
    x2: Tensor,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Tensor: ...
@overload
def pow(
    x1: Any,
    x2: Any,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Any: ...
@overload
def power(
    x1: Tensor,
    x2: Any,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Tensor: ...
@overload
def power(
    x1: Any,
    x2: Tensor,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Tensor: ...
@overload
def power(
    x1: Any,
    x2: Any,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Any: ...
@overload
def prod(a: Tensor, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False) -> Tensor: ...
@overload
def prod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False) -> Any: ...
@overload
def ptp(a: Tensor, axis: Any = None, keepdims: Any = False) -> Tensor: ...
@overload
def ptp(a: Any, axis: Any = None, keepdims: Any = False) -> Any: ...
@overload
def quantile(
    a: Tensor,
    q: Any,
    axis: Any = None,
    out: Any = None,
    overwrite_input: Any = False,
    method: Any = "linear",
    keepdims: Any = False,
) -> Tensor: ...
@overload
def quantile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: Any = None,
    overwrite_input: Any = False,
    method: Any = "linear",
    keepdims: Any = False,
) -> Any: ...

r_: Any

@overload
def rad2deg(x: Tensor, /) -> Tensor: ...
@overload
def rad2deg(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def radians(x: Tensor, /) -> Tensor: ...
@overload
def radians(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def ravel(a: Tensor, order: Any = "C") -> Tensor: ...
@overload
def ravel(a: Any, order: Any = "C") -> Any: ...
@overload
def real(val: Tensor) -> Tensor: ...
@overload
def real(val: Any) -> Any: ...
@overload
def real_if_close(a: Tensor, tol: Any = 100) -> Tensor: ...
@overload
def real_if_close(a: Any, tol: Any = 100) -> Any: ...
@overload
def reciprocal(x: Tensor, /) -> Tensor: ...
@overload
def reciprocal(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def remainder(
    x1: Tensor,
    x2: Any,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Tensor: ...
@overload
def remainder(
    x1: Any,
    x2: Tensor,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Tensor: ...
@overload
def remainder(
    x1: Any,
    x2: Any,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Any: ...
@overload
def repeat(a: Tensor, repeats: Any, axis: Any = None) -> Tensor: ...
@overload
def repeat(a: Any, repeats: Any, axis: Any = None) -> Any: ...
@overload
def reshape(a: Tensor, shape: Any, order: Any = "C", *, copy: Any = None) -> Tensor: ...
@overload
def reshape(a: Any, shape: Any, order: Any = "C", *, copy: Any = None) -> Any: ...
@overload
def resize(a: Tensor, new_shape: Any) -> Tensor: ...
@overload
def resize(a: Any, new_shape: Any) -> Any: ...
@overload
def right_shift(x: Tensor, y: Any, /) -> Tensor: ...
@overload
def right_shift(x: Any, y: Tensor, /) -> Tensor: ...
@overload
def right_shift(x: Any, y: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def rint(x: Tensor, /) -> Tensor: ...
@overload
def rint(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def roll(a: Tensor, shift: Any, axis: Any = None) -> Tensor: ...
@overload
def roll(a: Any, shift: Any, axis: Any = None) -> Any: ...
@overload
def rollaxis(a: Tensor, axis: Any, start: Any = 0) -> Tensor: ...
@overload
def rollaxis(a: Any, axis: Any, start: Any = 0) -> Any: ...
@overload
def rot90(m: Tensor, k: Any = 1, axes: Any = ...) -> Tensor: ...
@overload
def rot90(m: Any, k: Any = 1, axes: Any = ...) -> Any: ...
@overload
def round(a: Tensor, decimals: Any = 0) -> Tensor: ...
@overload
def round(a: Any, decimals: Any = 0) -> Any: ...
@overload
def row_stack(
    tup: Tensor | Sequence[Tensor] | Sequence[Sequence[Tensor]], *, dtype: Any = None, casting: Any = "same_kind"
) -> Tensor: ...
@overload
def row_stack(tup: Any, *, dtype: Any = None, casting: Any = "same_kind") -> Any: ...
@overload
def select(
    condlist: Any, choicelist: Tensor | Sequence[Tensor] | Sequence[Sequence[Tensor]], default: Any = 0
) -> Tensor: ...
@overload
def select(condlist: Any, choicelist: Any, default: Any = 0) -> Any: ...
def shape(a: Any) -> tuple[int, ...]: ...
@overload
def sign(x: Tensor) -> Tensor: ...
@overload
def sign(x: Any) -> Any: ...
@overload
def signbit(x: Tensor, /) -> Tensor: ...
@overload
def signbit(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def sin(x: Tensor, /) -> Tensor: ...
@overload
def sin(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def sinc(x: Tensor) -> Tensor: ...
@overload
def sinc(x: Any) -> Any: ...
@overload
def sinh(x: Tensor, /) -> Tensor: ...
@overload
def sinh(x: Any, /, *args: Any, **words: Any) -> Any: ...
def size(a: Any, axis: Any = None) -> int: ...
@overload
def sort(a: Tensor, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Tensor: ...
@overload
def sort(a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Any: ...
@overload
def sort_complex(a: Tensor) -> Tensor: ...
@overload
def sort_complex(a: Any) -> Any: ...
@overload
def split(ary: Tensor, indices_or_sections: Any, axis: Any = 0) -> list[Tensor]: ...
@overload
def split(ary: Any, indices_or_sections: Any, axis: Any = 0) -> list[Any]: ...
@overload
def sqrt(x: Tensor, /) -> Tensor: ...
@overload
def sqrt(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def square(x: Tensor, /) -> Tensor: ...
@overload
def square(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def squeeze(a: Tensor, axis: Any = None, *, dim: Any = None) -> Tensor: ...
@overload
def squeeze(a: Any, axis: Any = None, *, dim: Any = None) -> Any: ...
@overload
def stack(
    arrays: Tensor | Sequence[Tensor] | Sequence[Sequence[Tensor]],
    axis: Any = 0,
    out: Any = None,
    *,
    dtype: Any = None,
    casting: Any = "same_kind",
    dim: Any = None,
) -> Tensor: ...
@overload
def stack(
    arrays: Any, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: Any = "same_kind", dim: Any = None
) -> Any: ...
@overload
def std(
    a: Tensor,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: Any = False,
    *,
    mean: Any = None,
    correction: Any = None,
) -> Tensor: ...
@overload
def std(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: Any = False,
    *,
    mean: Any = None,
    correction: Any = None,
) -> Any: ...
@overload
def subtract(
    x1: Tensor,
    x2: Any,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Tensor: ...
@overload
def subtract(
    x1: Any,
    x2: Tensor,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Tensor: ...
@overload
def subtract(
    x1: Any,
    x2: Any,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Any: ...
@overload
def sum(
    a: Tensor, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, **words: Any
) -> Tensor: ...
@overload
def sum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, **words: Any) -> Any: ...
@overload
def swapaxes(a: Tensor, axis1: Any = None, axis2: Any = None, *, dim0: Any = None, dim1: Any = None) -> Tensor: ...
@overload
def swapaxes(a: Any, axis1: Any = None, axis2: Any = None, *, dim0: Any = None, dim1: Any = None) -> Any: ...
@overload
def take(a: Tensor, indices: Any, axis: Any = None, out: Any = None, mode: Any = "raise") -> Tensor: ...
@overload
def take(a: Any, indices: Tensor, axis: Any = None, out: Any = None, mode: Any = "raise") -> Tensor: ...
@overload
def take(a: Any, indices: Any, axis: Any = None, out: Any = None, mode: Any = "raise") -> Any: ...
@overload
def take_along_axis(arr: Tensor, indices: Any, axis: Any = -1) -> Tensor: ...
@overload
def take_along_axis(arr: Any, indices: Tensor, axis: Any = -1) -> Tensor: ...
@overload
def take_along_axis(arr: Any, indices: Any, axis: Any = -1) -> Any: ...
@overload
def tan(x: Tensor, /) -> Tensor: ...
@overload
def tan(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def tanh(x: Tensor, /) -> Tensor: ...
@overload
def tanh(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def tensordot(a: Tensor, b: Any, axes: Any = 2) -> Tensor: ...
@overload
def tensordot(a: Any, b: Tensor, axes: Any = 2) -> Tensor: ...
@overload
def tensordot(a: Any, b: Any, axes: Any = 2) -> Any: ...
@overload
def tile(A: Tensor, reps: Any) -> Tensor: ...
@overload
def tile(A: Any, reps: Any) -> Any: ...
@overload
def trace(a: Tensor, offset: Any = 0, axis1: Any = 0, axis2: Any = 1, dtype: Any = None, out: Any = None) -> Tensor: ...
@overload
def trace(a: Any, offset: Any = 0, axis1: Any = 0, axis2: Any = 1, dtype: Any = None, out: Any = None) -> Any: ...
@overload
def transpose(a: Tensor, axes: Any = None) -> Tensor: ...
@overload
def transpose(a: Any, axes: Any = None) -> Any: ...
@overload
def trapezoid(y: Tensor, x: Any = None, dx: Any = 1.0, axis: Any = -1) -> Tensor: ...
@overload
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: Any = -1) -> Any: ...
@overload
def tril(m: Tensor, k: Any = 0) -> Tensor: ...
@overload
def tril(m: Any, k: Any = 0) -> Any: ...
@overload
def triu(m: Tensor, k: Any = 0) -> Tensor: ...
@overload
def triu(m: Any, k: Any = 0) -> Any: ...
@overload
def true_divide(
    x1: Tensor,
    x2: Any,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Tensor: ...
@overload
def true_divide(
    x1: Any,
    x2: Tensor,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Tensor: ...
@overload
def true_divide(
    x1: Any,
    x2: Any,
    /,
    out: Any = None,
    *,
    where: Any = True,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    signature: Any = None,
) -> Any: ...
@overload
def trunc(x: Tensor, /) -> Tensor: ...
@overload
def trunc(x: Any, /, *args: Any, **words: Any) -> Any: ...
@overload
def unstack(x: Tensor, /, *, axis: Any = 0) -> tuple[Tensor, ...]: ...
@overload
def unstack(x: Any, /, *, axis: Any = 0) -> tuple[Any, ...]: ...
@overload
def unwrap(p: Tensor, discont: Any = None, axis: Any = -1, *, period: Any = 6.283185307179586) -> Tensor: ...
@overload
def unwrap(p: Any, discont: Any = None, axis: Any = -1, *, period: Any = 6.283185307179586) -> Any: ...
@overload
def var(
    a: Tensor,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: Any = False,
    *,
    mean: Any = None,
    correction: Any = None,
) -> Tensor: ...
@overload
def var(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: Any = False,
    *,
    mean: Any = None,
    correction: Any = None,
) -> Any: ...
@overload
def vdot(a: Tensor, b: Any) -> Tensor: ...
@overload
def vdot(a: Any, b: Tensor) -> Tensor: ...
@overload
def vdot(a: Any, b: Any) -> Any: ...
@overload
def vecdot(x1: Tensor, x2: Any, axis: Any = -1) -> Tensor: ...
@overload
def vecdot(x1: Any, x2: Tensor, axis: Any = -1) -> Tensor: ...
@overload
def vecdot(x1: Any, x2: Any, axis: Any = -1) -> Any: ...
@overload
def vsplit(ary: Tensor, indices_or_sections: Any) -> list[Tensor]: ...
@overload
def vsplit(ary: Any, indices_or_sections: Any) -> list[Any]: ...
@overload
def vstack(
    tup: Tensor | Sequence[Tensor] | Sequence[Sequence[Tensor]], *, dtype: Any = None, casting: Any = "same_kind"
) -> Tensor: ...
@overload
def vstack(tup: Any, *, dtype: Any = None, casting: Any = "same_kind") -> Any: ...
@overload
def where(condition: Any) -> tuple[ndarray, ...]: ...
@overload
def where(condition: Any, x: Tensor, y: Any) -> Tensor: ...
@overload
def where(condition: Any, x: Any, y: Tensor) -> Tensor: ...
@overload
def where(condition: Tensor, x: Any, y: Any) -> Tensor: ...
@overload
def where(condition: Any, x: Any, y: Any) -> Any: ...
