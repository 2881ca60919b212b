"""DynaMix's functions compiled as a whole: op by op, every one of these would compile dozens of programs."""

import equinox as eqx
import jax

step = eqx.filter_jit(lambda core, z: core(z))
weights = eqx.filter_jit(lambda core, z: core._weights(z, core._eps(z)[0]))
jacobian = eqx.filter_jit(lambda core, z: core.jacobian(z))
derivative = eqx.filter_jit(lambda core, z: jax.jacfwd(core)(z))
predict_mean = eqx.filter_jit(lambda core, z: core.predict_mean(z))
predict_moments = eqx.filter_jit(lambda core, z, P: core.predict_moments(z, P))
pull_back_mean = eqx.filter_jit(lambda core, z, bar, with_core: core.pull_back_mean(z, bar, with_core=with_core))
pull_back_moments = eqx.filter_jit(
    lambda core, z, P, z_bar, P_bar, with_core: core.pull_back_moments(z, P, z_bar, P_bar, with_core=with_core)
)
in_context = eqx.filter_jit(lambda core, context: core.in_context(context))
