# SPDX-License-Identifier: Apache-2.0
import pytest

import pagoda


@pytest.fixture
def need():
    """need("int4") skips the test if the build has no kernels for the type."""

    def check(*types):
        for name in types:
            if name not in pagoda.types():
                pytest.skip(f"this build has no kernels for {name} (PAGODA_TYPES)")

    return check
