"""The measures of the tree stay within their limits, and are measured."""

from __future__ import annotations

import pytest

from tests.house.table import Measure, layer_contracts, measures, paragraphs, shared_class_names

MEASURES = measures()


@pytest.mark.parametrize("measure", MEASURES, ids=[measure.name for measure in MEASURES])
def test_the_tree_stays_within_its_limits(measure: Measure) -> None:
    assert measure.is_kept, (measure, paragraphs(), sorted(shared_class_names()))


def test_there_are_four_layer_contracts() -> None:
    assert layer_contracts() == 4


def test_what_is_measured_is_there() -> None:
    found = {measure.name: measure.value for measure in MEASURES}
    assert found["modules without testing"] > 100 and found["raw lines without testing"] > 20_000
    assert found["of these with one importer only"] > 5, "importers are found"
