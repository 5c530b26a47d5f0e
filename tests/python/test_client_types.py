"""The types of the package `ripieno`: all that a program imports of it has them, so that a type checker sees its mistakes."""

import inspect
import sys
import typing

import pytest

from serving import ROOT

sys.path.insert(0, str(ROOT / "clients" / "python"))
import ripieno
from ripieno.models import Kind, Tensor

DATATYPES = [name for name in ripieno.__all__ if name.rstrip("_") in ("bool", "string") or name.lstrip("bfiu").isdigit()]


def functions(found):
    """What a user can call of a name, as pairs of a name and a function."""
    if inspect.isclass(found):
        own = [(name, value) for name, value in vars(found).items() if not name.startswith("_") or name in ("__init__", "__enter__")]
        return [(name, value) for name, value in own if inspect.isfunction(value)]
    return [(getattr(found, "__name__", ""), found)] if inspect.isfunction(found) else []


@pytest.mark.parametrize("name", ripieno.__all__)
def test_all_that_is_exported_is_typed(name):
    for called, function in functions(getattr(ripieno, name)):
        hints = typing.get_type_hints(function)
        parameters = [parameter for parameter in inspect.signature(function).parameters if parameter != "self"]
        missing = [parameter for parameter in [*parameters, "return"] if parameter not in hints]
        assert not missing, f"{name}.{called}: {missing} have no type"


def test_datatypes_are_called_with_dimensions():
    assert len(DATATYPES) == 14
    assert typing.get_type_hints(Kind.__call__)["return"] is Tensor
    for name in DATATYPES:
        tensor = getattr(ripieno, name)(2, None, ripieno.LENGTH)
        assert (tensor.dims(), tensor.length_dim) == ((-1, 2, -1, -1), 3), name
        for wrong in (1.5, "3", -2):
            with pytest.raises(TypeError):
                getattr(ripieno, name)(wrong)
    assert (ROOT / "clients" / "python" / "ripieno" / "py.typed").exists()
