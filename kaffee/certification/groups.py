"""Certificates of groups that share a core: one for each of them, and what they say together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kaffee.certification.certificate import AXES, Certificate, CertificationSettings, certify
from kaffee.certification.verdicts import Status, worst
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.series import Series
from kaffee.errors import ConfigError
from kaffee.records import jsonable


@dataclass(frozen=True)
class GroupedCertificate:
    """The certificate of each group by its name, and for all groups means over held-out readings and worst verdicts.

    Attributes:
        method: Of the model.
        entries: Held-out readings of each group.
        missing: Groups without held-out rows, which are not judged.
    """

    certificates: dict[str, Certificate]
    method: str
    entries: dict[str, int]
    missing: tuple[str, ...] = ()

    @property
    def axes(self) -> dict[int, Status]:
        """The worst status of every axis over groups: what a statement about all of them may rely on."""
        return {axis: worst([each.axes[axis] for each in self.certificates.values()]) for axis in AXES}

    @property
    def overall(self) -> dict[str, float]:
        """NLL and coverage over the readings of all groups, and the median of each distance of free runs."""
        checks = [each.checks[self.method] for each in self.certificates.values()]
        weights = np.array([self.entries[name] for name in self.certificates], float)
        values = {name: float(np.average([getattr(c, name) for c in checks], weights=weights)) for name in _MEANS}
        return {**values, **{name: float(np.median([getattr(c, name) for c in checks])) for name in _MEDIANS}}

    def to_dict(self) -> dict[str, Any]:
        """Convert the summary to JSON values; each group's certificate has its own record."""
        own = {
            name: {"axes": each.axes, **{key: getattr(each.checks[self.method], key) for key in (*_MEANS, *_MEDIANS)}}
            for name, each in self.certificates.items()
        }
        whole = {"axes": self.axes, **self.overall}
        return jsonable({"overall": whole, "groups": own, "entries": self.entries, "not_judged": self.missing})


_MEANS, _MEDIANS = ("nll", "coverage_90"), ("d_stsp_core", "d_h_core")


def certify_groups(
    reconstruction: Reconstruction,
    train: Series,
    test: Series,
    *,
    prior: Reconstruction | None = None,
    linear: Reconstruction | None = None,
    settings: CertificationSettings | None = None,
    any_step: bool = False,
    watch: Callable[[str], object] | None = None,
) -> GroupedCertificate:
    """Certify every group of a model on its own held-out data; arguments are those of `certify`."""
    if not reconstruction.groups:
        raise ConfigError("The model has no groups; certify it by kaffee.certification.certify.")
    certificates, entries = {}, {}
    judged = [name for name in reconstruction.groups if name in test.group_names]
    for name in judged:
        if watch is not None:
            watch(f"group {name}")
        beside = {"prior": prior, "linear": linear}
        own: dict[str, Any] = {key: None if model is None else model.group(name) for key, model in beside.items()}
        parts = train.of_group(name), test.of_group(name)
        certificates[name] = certify(reconstruction.group(name), *parts, **own, settings=settings, any_step=any_step)
        entries[name] = int(sum(mask.sum() for mask in parts[1].mask))
    missing = tuple(name for name in reconstruction.groups if name not in judged)
    return GroupedCertificate(certificates, reconstruction.method, entries, missing)
