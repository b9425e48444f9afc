import pytest
from test_models import variants, build_training, make_batches
from test_virtual import assert_recorded_equally, seed

def built(model, precision, checkpointed):
    seed(); training = build_training(model, precision, checkpointed); seed(); return training

@pytest.mark.parametrize("model, precision, checkpointed, masked", list(variants()))
def test_sweep(model, precision, checkpointed, masked):
    assert_recorded_equally(lambda: built(model, precision, checkpointed), make_batches(model, precision, masked)(0))
