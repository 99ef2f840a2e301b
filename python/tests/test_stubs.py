# SPDX-License-Identifier: MIT OR Apache-2.0
"""The stubs agree with the module, and everything public is documented."""

import ast
import builtins
import inspect
import pathlib
from inspect import Parameter

import pinmap
import pytest

HERE = pathlib.Path(pinmap.__file__).parent


def stub(name):
    return ast.parse((HERE / name).read_text()).body


def functions(body):
    """The functions of a stub; the last one of those with the same name."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name: node for node in body if isinstance(node, kinds)}


def described(node):
    """The parameters of a function in a stub, as those of inspect.signature()."""
    given, made = node.args, []
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + given.defaults
    for index, (argument, default) in enumerate(zip(positional, defaults)):
        only = index < len(given.posonlyargs)
        kind = Parameter.POSITIONAL_ONLY if only else Parameter.POSITIONAL_OR_KEYWORD
        made.append((argument.arg, kind, default))
    if given.vararg:
        made.append((given.vararg.arg, Parameter.VAR_POSITIONAL, None))
    for argument, default in zip(given.kwonlyargs, given.kw_defaults):
        made.append((argument.arg, Parameter.KEYWORD_ONLY, default))
    made = [(name, kind, default and ast.literal_eval(default)) for name, kind, default in made]
    return [one for one in made if one[0] != "self"]


def check_function(node, real, where):
    found = [
        (one.name, one.kind, None if one.default is one.empty else one.default)
        for one in inspect.signature(real).parameters.values()
        if one.name != "self"
    ]
    assert described(node) == found, where
    assert inspect.getdoc(real), f"{where} is not documented"


def is_public(name):
    return not name.startswith("_")


def classes(name):
    return {node.name: node for node in stub(name) if isinstance(node, ast.ClassDef)}


CLASSES = classes("__init__.pyi") | classes("_program.pyi")
OF_XDMA = classes("xdma.pyi")


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_class(name):
    if not is_public(name):
        pytest.skip("a type of the stubs only")
    check_class(CLASSES[name], getattr(pinmap, name))


@pytest.mark.parametrize("name", sorted(OF_XDMA))
def test_class_of_xdma(name):
    check_class(OF_XDMA[name], getattr(pinmap.xdma, name))


def check_class(node, real):
    name = node.name
    assert inspect.getdoc(real)
    methods, properties = {}, set()
    for child in node.body:
        if isinstance(child, ast.FunctionDef) and child.decorator_list:
            properties.add(child.name)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            methods[child.name] = child
        elif isinstance(child, ast.AnnAssign):
            properties.add(child.target.id)
    for method, child in methods.items():
        if is_public(method) or method in ("__dlpack__", "__array__"):
            check_function(child, getattr(real, method), f"{name}.{method}")
    inherited = dir(OSError) if issubclass(real, OSError) else []
    public = {found for found in vars(real) if is_public(found)} - set(inherited)
    assert public == {one for one in [*methods, *properties] if is_public(one)}
    if not issubclass(real, pinmap.Error):
        for one in properties:
            assert inspect.getdoc(getattr(real, one)), f"{name}.{one} is not documented"


def test_functions():
    found = functions([*stub("__init__.pyi"), *stub("_program.pyi")])
    for name, node in found.items():
        check_function(node, getattr(pinmap, name), name)
    classes = [name for name in CLASSES if is_public(name)]
    # `from pinmap import *` leaves the builtins alone.
    public = {*found, *classes, "testgpu", "xdma"} - set(dir(builtins))
    assert sorted(public) == sorted(pinmap.__all__)


def test_kernels():
    found = functions(stub("testgpu.pyi"))
    assert sorted(found) == sorted(pinmap.testgpu.__all__)
    for name, node in found.items():
        check_function(node, getattr(pinmap.testgpu, name), name)


def test_functions_of_xdma():
    found = functions(stub("xdma.pyi"))
    for name, node in found.items():
        check_function(node, getattr(pinmap.xdma, name), name)
    assert sorted({*found, *OF_XDMA} - set(dir(builtins))) == sorted(pinmap.xdma.__all__)


def test_the_module_says_that_it_has_types():
    assert (HERE / "py.typed").exists()
    assert pinmap.__version__.count(".") == 2
    assert inspect.getdoc(pinmap) and inspect.getdoc(pinmap.testgpu) and inspect.getdoc(pinmap.xdma)
