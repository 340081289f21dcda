"""Reading pickles without running them: every class and call becomes a plain stand-in.

Contract: `load` follows the opcodes and builds dicts, lists, tuples, strings and numbers; whatever
would import or call something becomes `Made(name, args, state)`. No name is looked up, so a pickle
can do nothing here but be wrong. Values refer to each other as in the original, so take care with
cycles: look things up, never walk everything.

Cost: about 2 us an opcode; memory is bounded by the size of the pickle, which is at most
`PICKLE_BYTES`.
"""

from __future__ import annotations

import pickletools
from typing import Any

import msgspec

from tailwatch.integrity.foreign.findings import Damage

PICKLE_BYTES = 64 * 1024 * 1024

_MARK = object()
_CONSTANTS = {
    "NONE": None,
    "NEWTRUE": True,
    "NEWFALSE": False,
}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": list}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Made(msgspec.Struct, eq=False):
    """Stands for what a call of `name` would have made; an uncalled name has no `args`.

    `items` is what was put into it later, as into an OrderedDict.
    """

    name: str
    args: Any = ()
    state: Any = None
    items: dict[Any, Any] = {}

    def get(self, key: str) -> Any:
        """Return an attribute or item of the object that it stands for, or None."""
        states = self.state if isinstance(self.state, tuple) else (self.state,)
        for state in (*states, self.items):
            if isinstance(state, dict) and key in state:
                return state[key]
        return None


class Pickled(msgspec.Struct):
    """The value, the persistent ids it refers to in order, and the bytes it took."""

    value: Any
    references: list[Any]
    length: int


def load(data: bytes) -> Pickled:
    """Read the pickle that `data` begins with; raise Damage when it cannot be followed to its end.

    Any exception in here comes from the bytes, because nothing else is involved.
    """
    reader = _Reader()
    try:
        for opcode, argument, position in pickletools.genops(data):
            if opcode.name == "STOP":
                return Pickled(reader.pop(), reader.references, (position or 0) + 1)
            reader.step(opcode.name, argument)
    except Exception as error:
        text = "is damaged: its pickle cannot be followed to the end"
        raise Damage("damaged", text) from error
    raise Damage("truncated", "is truncated: its pickle has no end")


def lookup(value: Any, key: str) -> Any:
    """Return `value[key]` or `value.key` of what was loaded, or None."""
    if isinstance(value, dict):
        return value.get(key)
    return value.get(key) if isinstance(value, Made) else None


class _Reader:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.references: list[Any] = []

    def pop(self) -> Any:
        return self.stack.pop()

    def to_mark(self) -> list[Any]:
        items: list[Any] = []
        while (item := self.stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            count = _TUPLES[name]
            stack[-count:] = [tuple(stack[-count:])]
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "TUPLE":
            stack.append(tuple(self.to_mark()))
        elif name in ("LIST", "FROZENSET"):
            stack.append(self.to_mark())
        elif name == "DICT":
            items = self.to_mark()
            stack.append({})
            self.put(items)
        elif name in ("MEMOIZE",):
            self.memo[len(self.memo)] = stack[-1]
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            self.put([key, value])
        elif name == "SETITEMS":
            self.put(self.to_mark())
        elif name == "APPEND":
            item = stack.pop()
            self.extend([item])
        elif name in ("APPENDS", "ADDITEMS"):
            self.extend(self.to_mark())
        elif name == "POP":
            stack.pop()
        elif name == "POP_MARK":
            self.to_mark()
        elif name == "DUP":
            stack.append(stack[-1])
        elif name == "GLOBAL":
            stack.append(Made(str(argument).replace(" ", ".")))
        elif name == "STACK_GLOBAL":
            attribute, module = stack.pop(), stack.pop()
            stack.append(Made(f"{_text(module)}.{_text(attribute)}"))
        elif name in ("REDUCE", "NEWOBJ"):
            args, what = stack.pop(), stack.pop()
            stack.append(_made(what, args))
        elif name == "NEWOBJ_EX":
            _, args, what = stack.pop(), stack.pop(), stack.pop()
            stack.append(_made(what, args))
        elif name == "OBJ":
            what, *rest = self.to_mark()
            stack.append(_made(what, tuple(rest)))
        elif name == "INST":
            stack.append(Made(str(argument).replace(" ", "."), tuple(self.to_mark())))
        elif name == "BUILD":
            state = stack.pop()
            if isinstance(stack[-1], Made):
                stack[-1].state = state
        elif name in ("PERSID", "BINPERSID"):
            reference = argument if name == "PERSID" else stack.pop()
            self.references.append(reference)
            stack.append(Made("persistent", reference))
        elif name in ("EXT1", "EXT2", "EXT4"):
            stack.append(Made(f"extension.{argument}"))
        elif name not in ("PROTO", "FRAME", "NEXT_BUFFER", "READONLY_BUFFER"):
            # All the rest push the argument that they carry: numbers, strings, bytes.
            stack.append(argument)

    def put(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Made):
            target = target.items
        target.update(zip(map(_key, items[::2]), items[1::2], strict=True))

    def extend(self, items: list[Any]) -> None:
        # A list subclass is a Made; what is in it is of no interest.
        if isinstance(self.stack[-1], list):
            self.stack[-1].extend(items)


def _key(key: Any) -> Any:
    # Hashing a tuple of tuples of ... recurses in C, where nothing stops it before a crash.
    if isinstance(key, tuple):
        return key if not any(isinstance(part, tuple) for part in key) else Made("key", key)
    return key if isinstance(key, str | bytes | int | float | Made | None) else Made("key", key)


def _made(what: Any, args: Any) -> Made:
    return Made(what.name if isinstance(what, Made) else "?", args)


def _text(part: Any) -> str:
    return part if isinstance(part, str) else "?"
