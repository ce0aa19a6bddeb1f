# SPDX-License-Identifier: Apache-2.0
"""The life of Kokkos in a Python process: exits with objects alive, forks, threads."""

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
from support import TOLERANCE, Scene, close

import pagoda

START = """
    import numpy as np, pagoda
    from support import Scene
    scene = Scene()
    cache = scene.cache()
    plan = pagoda.plan(cache, num_q_heads=8)
    pool = pagoda.PagedPool(dtype="fp32", num_kv_heads=1, head_dim=8, max_seq_len=8, max_sequences=1)
"""


def run(program):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
    text = textwrap.dedent(START) + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_exit_with_objects_alive():
    assert run("plan.decode(scene.q, cache)") == (0, "", "")


def test_exit_with_objects_in_a_cycle_and_in_other_exit_handlers():
    program = """
        import atexit
        plan.decode(scene.q, cache)
        class Keeper: pass
        keeper = Keeper()
        keeper.all = [keeper, plan, pool, np.from_dlpack(pool.k)]
        class Late:
            def __del__(self):
                try:
                    plan.decode(scene.q, cache)
                except RuntimeError as error:
                    print(error)
        import sys
        sys.late = Late()
    """
    code, out, err = run(program)
    assert (code, err) == (0, "")
    assert out in ("", "pagoda: the interpreter is exiting, and the plan is closed\n")


def test_exit_by_an_exception():
    code, _, err = run("raise SystemExit(3)")
    assert (code, err) == (3, "")


def test_import_alone_starts_nothing():
    # Kokkos would start its threads.
    program = "import os, pagoda; print(len(os.listdir('/proc/self/task')))"
    if not Path("/proc/self/task").exists():
        pytest.skip("there is no /proc")
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "OMP_NUM_THREADS": "2"}, capture_output=True, text=True
    )
    assert done.stdout == "1\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_is_refused():
    program = """
        import os, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forks beside threads
        plan.decode(scene.q, cache)
        child = os.fork()
        if child == 0:
            for call in (lambda: pagoda.plan(cache, num_q_heads=8), lambda: plan.decode(scene.q, cache)):
                try:
                    call()
                except RuntimeError as error:
                    print(error, flush=True)
            raise SystemExit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        plan.decode(scene.q, cache)
    """
    code, out, err = run(program)
    assert code == 0
    # The child of a process that has used CUDA cannot finalize it, which Kokkos reports as the child ends.
    assert err in ("", "Kokkos::Cuda ERROR: Failed to call Kokkos::Cuda::finalize()\n")
    assert out.count("this process was forked from one that had used Pagoda") == 2


def test_threads():
    scenes = [Scene(seed=seed) for seed in range(4)]
    shared = pagoda.plan(scenes[0].cache(), num_q_heads=8)
    wrong = []

    def work(scene):
        try:
            own = pagoda.plan(scene.cache(), num_q_heads=8)
            for _ in range(50):
                for plan in (own, shared):
                    close(plan.decode(scene.q, scene.cache()), scene.right()[0], TOLERANCE["fp32"])
        except Exception as error:  # noqa: BLE001
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(scene,)) for scene in scenes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_stubs(tmp_path):
    """mypy finds the package's types, and errors in a program that uses it."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    folder = Path(pagoda.__file__).parent
    assert (folder / "py.typed").exists() and (folder / "_core.pyi").exists()
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import numpy as np
            import pagoda

            cache = pagoda.PagedCache(np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1), order="HND")
            plan = pagoda.plan(cache, num_q_heads=8)
            text: str = plan.describe()
            plan.decode(np.zeros(1), 5)
            pagoda.plan(cache, num_q_heads="8")
            plan.backend = "tuned"
            """
        )
    )
    env = dict(os.environ)
    if folder.parent.name != "site-packages":  # mypy finds what is installed, and refuses to be told
        env["MYPYPATH"] = str(folder.parent)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--ignore-missing-imports", "--cache-dir", str(tmp_path / "cache"), str(program)],
        env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )
    errors = [line.split(": error: ")[1] for line in done.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 3, done.stdout  # none of them in the package itself
    assert 'incompatible type "int"' in errors[0] and 'incompatible type "str"' in errors[1] and "read-only" in errors[2]
