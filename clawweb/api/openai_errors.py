"""OpenAI's words for what is wrong with a request."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

OUR_FAULT = "Something broke on our side. Try again."
_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "a boolean",
    "list_type": "an array",
    "model_type": "an object",
    "object_expected": "an object",
}
_BOUNDS = {  # of pydantic: the sign, its key in the context, which end
    "greater_than_equal": (">=", "ge", "below minimum"),
    "greater_than": (">", "gt", "below minimum"),
    "less_than_equal": ("<=", "le", "above maximum"),
    "less_than": ("<", "lt", "above maximum"),
}


class Unacceptable(Exception):
    """A request that cannot be served; becomes OpenAI's error shape (clawweb/problem.py)."""

    def __init__(
        self, message: str, *, status: int = 400, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


def first_problem(exc: ValidationError) -> Unacceptable:
    """The first field that is wrong, as OpenAI says it."""
    errors = exc.errors(include_url=False)
    first = errors[0]
    path = _path(first)
    if first["type"] == "json_invalid":
        return Unacceptable("We could not parse the JSON body of your request.")
    if first["type"] == "missing":
        message = f"Missing required parameter: '{path}'."
        return Unacceptable(message, param=path, code="missing_required_parameter")
    if first["type"] in _EXPECTED:
        same = [e for e in errors if _path(e) == path and e["type"] in _EXPECTED]
        expected = " or ".join(dict.fromkeys(_EXPECTED[e["type"]] for e in same))
        message = f"Invalid type for '{path}': expected {expected}, but got {_got(first)} instead."
        return Unacceptable(message, param=path or None, code="invalid_type")
    return _out_of_bounds(first, path)


def _out_of_bounds(first: ErrorDetails, path: str) -> Unacceptable:
    """A value of the right type that is not among those allowed."""
    context = first.get("ctx", {})
    if first["type"] in _BOUNDS:
        sign, key, end = _BOUNDS[first["type"]]
        kind = "integer" if isinstance(first["input"], int) else "decimal"
        message = (
            f"Invalid '{path}': {kind} {end} value. Expected a value {sign} {context[key]}, "
            f"but got {first['input']} instead."
        )
        code = f"{kind}_{'below_min' if 'below' in end else 'above_max'}_value"
        return Unacceptable(message, param=path, code=code)
    if first["type"] == "too_short":
        message = f"Invalid '{path}': empty array. Expected an array with minimum length 1."
        return Unacceptable(message, param=path, code="empty_array")
    if first["type"] == "too_long":
        message = (
            f"Invalid '{path}': array too long. Expected an array with maximum length "
            f"{context['max_length']}."
        )
        return Unacceptable(message, param=path, code="array_above_max_length")
    if first["type"] == "literal_error":
        message = (
            f"Invalid value for '{path}': {str(first['input'])[:60]!r}. Supported values are: "
            f"{context['expected']}."
        )
        return Unacceptable(message, param=path, code="invalid_value")
    words = first["msg"]
    if path == "session_id":
        words = "It is empty, too long, or holds a character that is not printable."
    return Unacceptable(f"Invalid value for '{path}': {words}", param=path or None)


def _path(problem: ErrorDetails) -> str:
    """`messages[0].content`: where it is, without the names that pydantic gives to alternatives."""
    path = ""
    for part in problem["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif "[" in part or part in ("str", "int", "float", "bool"):
            break
        else:
            path += f".{part}" if path else part
    return path


def _got(problem: ErrorDetails) -> str:
    value: Any = problem["input"]
    names = {bool: "a boolean", int: "an integer", float: "a decimal", str: "a string"}
    names |= {list: "an array", dict: "an object"}
    return "null" if value is None else names.get(type(value), "something else")
