"""Whether held-out data are enough for a certificate, said before the work is done."""

import numpy as np

from kaffee.certification.passes import warm_up_of
from kaffee.certification.residuals import MIN_ENTRIES
from kaffee.checks import MIN_ROWS
from kaffee.data.series import Series
from kaffee.data.stretches import complete_rows


def shortage(test: Series) -> str:
    """A sentence about the checks that these held-out data are too few for; empty if there are none."""
    warm_up = warm_up_of(test)
    readings = sum(int((~np.isnan(values[warm_up:])).sum()) for values in test.recordings)
    rows = len(complete_rows(test))
    needs = []
    if readings < MIN_ENTRIES:
        after = f"after {warm_up} row{'s' * (warm_up > 1)} of warm-up"
        needs.append(f"one-step predictions need {MIN_ENTRIES} readings, of which there are {readings} {after}")
    if rows < MIN_ROWS:
        needs.append(f"free runs need {MIN_ROWS} rows without gaps, of which there are {rows}")
    if not needs:
        return ""
    held_out = f"{test.num_steps} held-out row{'s are' if test.num_steps > 1 else ' is'}"
    return f"{held_out} too few for the certificate: {'; '.join(needs)}. Record more, or hold out more by test_fraction"
