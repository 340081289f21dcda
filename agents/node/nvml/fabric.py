"""What the NVLink fabric says of a GPU: its state, and its health mask taken apart.

Contract: pure functions. The mask is a row of small fields, each of which says "not supported",
"true" or "false", so a mask that is not zero is no fault by itself; what is not supported is left
out. A fabric manager that dies later leaves the state as it was: this cannot be seen here.
"""

from __future__ import annotations

NOT_SUPPORTED, NOT_STARTED, IN_PROGRESS, COMPLETED = range(4)

_TRUE, _FALSE = 1, 2
_FLAGS = {
    "degraded_bandwidth": 0,
    "route_recovery": 2,
    "route_unhealthy": 4,
    "access_timeout_recovery": 6,
}
_CONFIGURATION_SHIFT, _CONFIGURATION_WIDTH = 8, 0xF
_CONFIGURATION_RIGHT = 1


def ready(state: int, status: int) -> bool | None:
    """Return whether the GPU has joined its fabric; None where there is none to join.

    >>> ready(COMPLETED, 0), ready(COMPLETED, 999), ready(IN_PROGRESS, 0), ready(NOT_SUPPORTED, 0)
    (True, False, False, None)
    """
    if state == NOT_SUPPORTED:
        return None
    return state == COMPLETED and status == 0


def faults(mask: int) -> dict[str, bool]:
    """Return each fault the mask knows of and whether it is there.

    >>> faults(0)
    {}
    >>> faults(0b10_10_10_10) == dict.fromkeys(_FLAGS, False)
    True
    >>> faults(0b0100_00_00_00_01)
    {'degraded_bandwidth': True, 'incorrect_configuration': True}
    """
    found = {}
    for name, shift in _FLAGS.items():
        value = mask >> shift & 3
        if value in (_TRUE, _FALSE):
            found[name] = value == _TRUE
    configuration = mask >> _CONFIGURATION_SHIFT & _CONFIGURATION_WIDTH
    if configuration:
        found["incorrect_configuration"] = configuration != _CONFIGURATION_RIGHT
    return found
