"""Asks one device, and gets by with what it answers.

Contract: what a device does not support is left out and asked again after an hour; what it refuses
otherwise is left out and counted. Only a device that is lost, or one that answers nothing at all,
makes a read fail. No handle is ever used that NVML did not give out.

Cost: one NVML call for a batch of fields, whatever their number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from tailwatch.agents.node.nvml.library import (
    INVALID_ARGUMENT,
    LOST,
    UNSUPPORTED,
    Library,
    NvmlError,
)

ASK_AGAIN_SECONDS = 3600.0
ALL_LINKS = 0xFFFFFFFF
"""The scope that stands for the sum over the links of a GPU."""

Field = int | tuple[int, int]
"""A field, or a field and its scope (a link)."""

_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_NO_VALUE = {1: 0xFFFFFFFF, 2: 0xFFFFFFFFFFFFFFFF, 3: 0xFFFFFFFFFFFFFFFF}


class DeviceCalls:
    """Calls on one device handle; `errors` counts refusals by call and code."""

    def __init__(
        self, library: Library, handle: Any, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.library = library
        self.handle = handle
        self.errors: dict[tuple[str, str], int] = {}
        self._clock = clock
        self._unsupported: dict[object, float] = {}
        self._answers = 0
        self._first_error: NvmlError | None = None

    def begin(self) -> None:
        """Begin a read."""
        self._answers = 0
        self._first_error = None

    def end(self) -> None:
        """End a read; raise what was wrong when the device answered nothing."""
        if self._first_error is not None and not self._answers:
            raise self._first_error

    def supports(self, what: object) -> bool:
        """Whether a call or field is worth asking for now."""
        until = self._unsupported.get(what)
        return until is None or self._clock() >= until

    def lacks(self, what: object) -> None:
        """Remember that the device does not support it."""
        self._unsupported[what] = self._clock() + ASK_AGAIN_SECONDS

    def forget(self) -> None:
        """Ask again for everything; the device may have become another."""
        self._unsupported.clear()

    def ask(self, name: str, *args: Any, memo: object = None) -> Any:
        """Return the answer to a call on the device, or None when it gives none."""
        return self.ask_of(self.handle, name, *args, memo=memo)

    def ask_of(self, handle: Any, name: str, *args: Any, memo: object = None) -> Any:
        """Ask a handle that belongs to the device, a MIG instance for one."""
        what = name if memo is None else (name, memo)
        if not self.supports(what):
            return None
        try:
            answer = self.library.call(name, handle, *args)
        except NvmlError as error:
            if error.code in UNSUPPORTED:
                self.lacks(what)
            else:
                self.refused(name, error)
            return None
        self._answers += 1
        return answer

    def refused(self, what: str, error: NvmlError) -> None:
        """Count a refusal; raise it again when it says that the device is gone."""
        if error.code in LOST or error.code == "UNINITIALIZED":
            raise error
        self.errors[what, error.code] = self.errors.get((what, error.code), 0) + 1
        self._first_error = self._first_error or error

    def fields(self, wanted: Iterable[Field]) -> dict[Field, float]:
        """Return the values of those fields that have one, in one call."""
        asked = [field for field in wanted if self.supports(field)]
        if not asked:
            return {}
        answers = self.ask("nvmlDeviceGetFieldValues", asked)
        if answers is None:
            return {}
        found: dict[Field, float] = {}
        for field, answer in zip(asked, answers, strict=True):
            if answer.nvmlReturn:
                self._field_failed(field, answer.nvmlReturn)
                continue
            kind = answer.valueType
            if kind >= len(_MEMBERS):
                continue
            value = getattr(answer.value, _MEMBERS[kind])
            if value != _NO_VALUE.get(kind):
                found[field] = value
        return found

    def _field_failed(self, field: Field, number: int) -> None:
        code = self.library.code_name(number)
        # An id the driver is too old to know is an invalid argument to it.
        if code in UNSUPPORTED or number == INVALID_ARGUMENT:
            self.lacks(field)
            return
        name = f"field_{field if isinstance(field, int) else field[0]}"
        self.refused(name, NvmlError(code, f"{name}: {code}"))
