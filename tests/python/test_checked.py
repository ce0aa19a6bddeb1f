# SPDX-License-Identifier: Apache-2.0
"""Plans with the option checked."""

import numpy as np
import pytest
from support import TOLERANCE, Scene, close

import pagoda


def test_faults():
    scene = Scene()
    cache = scene.cache()
    plan = pagoda.plan(cache, num_q_heads=8, checked=True)
    right_out, right_lse = scene.right()
    out, lse = plan.decode(scene.q, cache, return_lse=True)
    close(out, right_out, TOLERANCE["fp32"])
    assert plan.faults() == [] and plan.fault_count() == 0
    # Batch entry 1 is sequence 2, and entry 2 is sequence 1.
    cache = scene.cache(sequence_ids=np.array([0, 2, 1], np.int32))
    scene.block_table[1, 2] = -7
    scene.seq_lens[2] = 1 << 30
    out, lse = plan.decode(scene.q, cache, return_lse=True)
    close(out[0], right_out[0], TOLERANCE["fp32"])
    close(lse[0], right_lse[0], TOLERANCE["fp32"])
    assert np.isnan(out[1:]).all() and np.isnan(lse[1:]).all()
    length, page = plan.faults()
    assert length[:4] == (1, 2, -1, 1 << 30) and page[:4] == (2, 1, 2, -7)
    assert page.message == "pagoda::decode: page 2 of sequence 1 (batch entry 2) is -7; allowed: 0 to 11"
    assert length.message.startswith("pagoda::decode: seq_lens(2) is 1073741824; allowed: 0 to ")
    assert plan.fault_count() == 2 and isinstance(page, pagoda.TableFault)


def test_errors():
    scene = Scene()
    cache = scene.cache()
    with pytest.raises(ValueError, match="pagoda::faults: the plan's checked is false"):
        pagoda.plan(cache, num_q_heads=8).faults()
    with pytest.raises(TypeError, match="pagoda.plan: checked is 1; allowed: a bool"):
        pagoda.plan(cache, num_q_heads=8, checked=1)
    with pytest.raises(ValueError, match="pagoda::PrefixDecoder: .*checked is true"):
        pagoda.PrefixDecoder(cache, num_q_heads=8, checked=True)
