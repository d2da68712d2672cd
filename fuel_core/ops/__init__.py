"""The operations that fuel registers with torch, each with a reference for every device.

Importing this package registers them.
"""

from fuel_core.ops.attend import attend
from fuel_core.ops.one_shot import attend_one_shot

__all__ = ["attend", "attend_one_shot"]
