"""The operations that fuel registers with torch, each with a reference for every device.

Importing this package registers them.
"""

from fuel_core.ops.cached import attend
from fuel_core.ops.one_shot import attend_one_shot
from fuel_core.ops.precision import at_least_float32

__all__ = ["at_least_float32", "attend", "attend_one_shot"]
