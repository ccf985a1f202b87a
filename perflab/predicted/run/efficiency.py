"""Estimates time from the share of the roofline that measured cases reached on the same GPU."""

from __future__ import annotations

from statistics import median

import msgspec

from perflab.base.identity import test_of
from perflab.predicted.gpus.names import DataSheet, gpu_by_device_name
from perflab.predicted.store.predictions import PredictedStore
from perflab.results.measured import Entry
from perflab.results.predicted import Prediction
from perflab.store.case_files import module_of, name_of
from perflab.store.times import BaselineStore
from perflab.units import format_percent


def with_estimate(
    prediction: Prediction, case: str, measured: BaselineStore, predicted: PredictedStore, gpu: DataSheet
) -> Prediction:
    """Return the prediction with an estimate of its time, if cases have both a measured and a predicted baseline.

    A case's efficiency is its roofline time over its measured time; a value above 1 means that the GPU's data sheet,
    the counting or the clock is wrong. The estimate uses the median, so that one case that consists of launches, or was
    disturbed, does not affect the others. Cases of the same test have precedence: a training step reaches another share
    than a forward pass does.
    """
    if prediction.roofline_ns is None:
        return prediction
    pairs = {
        (module, name): (before.roofline_ns, entry.replicates[0].median_ns)
        for module, name, entry in _measured_on(gpu, measured)
        if (before := predicted.of_module(gpu.name, module).get(name)) is not None
        and before.roofline_ns
        and entry.replicates
    }
    test = (module_of(case), test_of(name_of(case)))
    alike = {key: pair for key, pair in pairs.items() if (key[0], test_of(key[1])) == test}
    shares = [roofline_ns / measured_ns for roofline_ns, measured_ns in (alike or pairs).values()]
    if not shares:
        return prediction
    which = "this test's" if alike else "other"
    many = f"{len(shares)} of {which} cases measured on {gpu.device_name}"
    lowest, reached, highest = map(format_percent, (min(shares), median(shares), max(shares)))
    share = f"{reached} of the roofline" + (f" ({lowest} to {highest})" if lowest != highest else "")
    estimate_ns = prediction.roofline_ns / median(shares)
    return msgspec.structs.replace(prediction, estimate_ns=estimate_ns, estimate_from=f"{many}: {share}")


def _measured_on(gpu: DataSheet, measured: BaselineStore) -> list[tuple[str, str, Entry]]:
    """Return every baseline measured on such a GPU: the module as in file names, the case's name, the entry."""
    return [
        (path.stem, name, entry)
        for path in sorted(measured.directory.glob("cuda-*/*.json"))
        for name, entries in measured.load(path).items()
        for entry in entries
        if gpu_by_device_name(entry.environment.device_name) is gpu
    ]
