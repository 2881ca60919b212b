"""Windows of a batch over all visible devices: data parallelism in three placements.

Weights, optimiser and data are copied to every device, each device takes its share of the windows of a batch, and the
sum over windows in the loss and in its gradient is what devices exchange. A run is the same function of its seed as on
one device; only the order of that sum differs, by rounding.
"""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from kaffee.data.windows import WindowBatch

_AXIS = "windows"


def window_mesh(batch_size: int) -> Mesh | None:
    """Return as many visible devices as divide the batch into equal shares; None if that is one.

    With `jax.distributed` these are the devices of all processes.
    """
    devices = jax.devices()
    most = max(n for n in range(1, len(devices) + 1) if batch_size % n == 0)
    # Of several processes all devices or none: each has to take part.
    if most == 1 or (jax.process_count() > 1 and most < len(devices)):
        return None
    return Mesh(np.array(devices[:most]), (_AXIS,))


def replicate(tree: Any, mesh: Mesh | None) -> Any:
    """Copy all arrays of a tree to every device of the mesh; without a mesh it stays as it is."""
    if mesh is None:
        return tree
    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda leaf: jax.device_put(leaf, everywhere) if eqx.is_array(leaf) else leaf, tree)


def share_windows(batch: WindowBatch, mesh: Mesh | None) -> WindowBatch:
    """Give every device its share of the windows; for use inside jit."""
    if mesh is None:
        return batch
    shares = NamedSharding(mesh, PartitionSpec(_AXIS))

    def place(array: Any) -> Any:
        return jax.lax.with_sharding_constraint(array, shares)

    return WindowBatch(place(batch.observations), place(batch.mask), place(batch.starts), batch.key)


def gather(tree: Any, mesh: Mesh | None) -> Any:
    """Bring what all devices have to the first one of this process, where everything after training runs."""
    if mesh is None:
        return tree
    home = jax.local_devices()[0]

    def fetch(leaf: Any) -> Any:
        return jax.device_put(leaf.addressable_data(0), home) if eqx.is_array(leaf) else leaf

    return jax.tree.map(fetch, tree)
