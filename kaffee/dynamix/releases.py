"""The models that their authors published: where they are, whose they are, and how to know them again."""

from dataclasses import asdict, dataclass

from kaffee.dynamix.weights import Architecture, Weights


@dataclass(frozen=True)
class Release:
    """A published model.

    Attributes:
        name, repository, weights, config: What it, its place on the hub and its two files are called.
        licence, attribution: The terms, and whom to name.
        digest: `Weights.digest` of the copy that kaffee was measured with; the hub's own file may have another header.
        architecture: Its sizes.
    """

    name: str
    repository: str
    weights: str
    config: str
    licence: str
    attribution: str
    digest: str
    architecture: Architecture

    @property
    def files(self) -> tuple[str, str]:
        """Both file names."""
        return self.weights, self.config

    def differences(self, given: Weights) -> str:
        """What is not as it was published, in words; empty for a faithful copy."""
        sizes, published = asdict(given.architecture), asdict(self.architecture)
        found = [
            f"{size} = {sizes[size]} instead of {value}" for size, value in published.items() if sizes[size] != value
        ]
        if given.digest != self.digest:
            found.append(f"digest of the numbers {given.digest[:12]} instead of {self.digest[:12]}")
        return ", ".join(found)


DEFAULT = "dynamix-3d-alrnn-v1.0"
KNOWN = {
    DEFAULT: Release(
        name=DEFAULT,
        repository="DurstewitzLab/dynamix",
        weights="dynamix-3d-alrnn-v1.0.safetensors",
        config="config_3d-alrnn-v1.0.json",
        licence="CC-BY-4.0",
        attribution=(
            "C. Hemmer and D. Durstewitz, True Zero-Shot Inference of Dynamical Systems Preserving Long-Term "
            "Statistics, NeurIPS 2025"
        ),
        digest="f8f00dc2473a61189d5e91db0dbb8c50cb4cffae801dfd8e902de8cb6857463f",
        architecture=Architecture(latent_dim=30, num_observed=3, num_experts=10, num_gates=2),
    )
}


def terms_of(origin: str) -> dict[str, str]:
    """What a model that was made from published weights carries along (CC-BY: whose, which terms, that it changed).

    Args:
        origin: As `Weights.to_core` writes it; nothing is known of an empty or foreign one.

    >>> terms_of(f"{DEFAULT} sha256:c950aef03f24")["licence"], terms_of("")
    ('CC-BY-4.0', {})
    """
    release = KNOWN.get(origin.partition(" sha256:")[0])
    if release is None:
        return {"foundation_model": origin} if origin else {}
    return {
        "foundation_model": origin,
        "licence": release.licence,
        "attribution": release.attribution,
        "changes": "adapted to a recording by kaffee",
    }
