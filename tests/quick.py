"""The quick tests, ``pytest -m quick``: for each room of the library, tests that prove it in a second or two.

A row names files of tests, functions in them, or single cases, below `tests/`. `LONG` names the functions of these
files that take too long. ``pytest -m quick`` alone collects these files only: to collect all tests takes 9 s in each
process. Nothing is compiled in such a run, neither by Numba and LLVM nor by a C++ compiler: it proves NumPy's way,
which is the core's, and rooms that compile are exempt. Three jobs are started.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["EXEMPT", "LONG", "QUICK", "is_quick", "paths"]

QUICK: dict[str, tuple[str, ...]] = {
    "autograd.engine": ("autograd/engine/test_tape.py", "autograd/engine/test_deferral.py"),
    "autograd.layouts": (
        "autograd/layouts/test_rank_values.py", "autograd/layouts/test_expressions.py",
        "autograd/layouts/test_inference.py::test_two_operands",
        "autograd/layouts/test_inference.py::test_linear_operations_keep_every_label",
        "autograd/layouts/test_inference.py::test_nonlinear_operations_refuse_partial",
    ),
    "autograd.arrays": ("autograd/arrays/test_moves.py", "autograd/arrays/test_products.py"),
    "autograd.ops": (
        "autograd/ops/test_operations.py::test_every_operation_has_cases",
        "autograd/ops/test_operations.py::test_value_is_numpys",
        "autograd/ops/test_operations.py::test_adjoint_against_forward_mode",
    ),
    "autograd.ops.nn": ("autograd/nn/test_functional.py",),
    "autograd.transforms": ("autograd/transforms/test_checkpoint.py",
                            "autograd/transforms/test_transforms.py::test_jacobian",
                            "autograd/transforms/test_transforms.py::test_hessian_in_every_order",
                            "autograd/transforms/test_proving.py::test_the_proof_gives_parameters_other_values"),
    "autograd.numpy": ("autograd/numpy/test_pickle.py", "autograd/numpy/test_numpy.py::test_methods_are_numpys"),
    "autograd.scipy": ("autograd/scipy/test_scipy.py::test_convolve_refuses",
                       "autograd/scipy/test_scipy.py::test_xlogy_at_zero"),
    "autograd.scipy.stats": ("autograd/scipy/test_scipy.py::test_dirichlet",),
    "autograd.custom": ("autograd/custom/test_primitive.py",),
    "autograd.misc": ("autograd/test_hips_names.py::test_small_helpers",),
    "autograd.nn": ("autograd/nn/test_modules.py",),
    "autograd.optim": ("autograd/optim/test_groups.py", "autograd/optim/test_optim.py"),
    "autograd.data": ("autograd/data/test_loader.py",),
    "autograd.random": ("autograd/random/test_places.py", "autograd/random/test_layouts.py"),
    "autograd.records": ("autograd/records/test_text.py",),
    "autograd.testing": ("autograd/testing/test_declaration.py",),
    "collectives.declaration": ("collectives/test_call.py",),
    "collectives.ops": ("collectives/ops/test_mean.py", "collectives/ops/test_registry.py::test_world[3]",
                        "collectives/ops/test_registry.py::test_every_collective_has_cases"),
    "collectives.checks": ("collectives/checks/test_replicas.py",),
    "collectives.scale": ("collectives/scale/test_programs.py::test_wrong_programs[3]",
                          "collectives/scale/test_after_backward.py::test_right_microbatches"),
    "collectives.algorithms": ("collectives/algorithms/test_algorithms.py::test_dtypes",
                               "collectives/algorithms/test_algorithms.py::test_hierarchical",
                               "collectives/algorithms/test_algorithms.py::test_planted_faults"),
    "collectives.audit": ("collectives/audit/test_judge.py::test_a_fault_is_named[f8-twice]",),
    "collectives.faults": ("collectives/faults/test_plan.py", "collectives/faults/test_faults.py"),
    "collectives.inspect": ("collectives/inspect/test_plan.py",),
    "collectives.page": ("collectives/page/test_alignment.py", "collectives/page/test_comparison.py",
                         "collectives/page/test_data.py"),
    "collectives.job": ("collectives/job/test_failure.py::test_mismatch",
                        "collectives/job/test_world.py::test_a_killed_process_ends_the_job"),
    "collectives.testing": ("collectives/testing/test_regressions.py",),
    "collectives.tools": ("collectives/tools/test_tools.py::test_check_refuses",
                          "collectives/tools/test_tools.py::test_diagnosis"),
    "collectives.transports": ("collectives/transports/test_conformance.py::test_threads",),
    "collectives.transports.threads": ("collectives/transports/test_threads.py",),
    "collectives.transports.mpi": ("collectives/transports/test_conformance.py::test_mpi[3]",),
    "collectives.transports.shared_memory": ("collectives/transports/test_shared_memory.py",),
    "collectives.transports.device": ("collectives/transports/device/test_probe.py",),
    "collectives.transports.replays": ("collectives/inspect/test_replay.py::test_started_calls_and_messages",
                                       "collectives/inspect/test_replay.py::test_another_program_is_refused"),
    "parallel": ("parallel/test_bugs.py", "parallel/test_verify.py",
                 "parallel/test_trainer.py::test_a_mesh_trains_as_one_process[{'dp': 3}]"),
    "parallel.approximate": ("parallel/approximate/test_compression.py::test_equals_the_serial_algorithm",
                             "parallel/approximate/test_compression.py::test_nothing_is_lost"),
    "parallel.checkpoint": (
        "parallel/checkpoint/test_boxes.py", "parallel/checkpoint/test_errors.py::test_other_objects",
        "parallel/checkpoint/test_any_mesh.py::test_another_layout_has_the_same_values[dp2 zero 3-dp2 tp2]",
    ),
    "parallel.elastic": ("parallel/elastic/test_run.py::test_one_rank_is_left",
                         "parallel/elastic/test_replace.py::test_a_number_limits_the_replacements",
                         "parallel/elastic/test_replicas.py::test_a_flipped_bit_is_repaired",
                         "parallel/elastic/test_replicas.py::test_without_a_majority_it_is_an_error"),
    "parallel.data": ("parallel/data/test_buckets.py",),
    "parallel.tensor": ("parallel/tensor/test_layers.py",),
    "parallel.pipeline": ("parallel/pipeline/test_schedules.py",),
    "parallel.context": ("parallel/context/test_ring.py",),
    "parallel.expert": ("parallel/expert/test_mixture.py",),
    "parallel.report": ("parallel/test_report.py",),
    "parallel.runs": ("parallel/test_runs.py",),
}  # fmt: skip
"""The quick tests of each folder of the library; those of a package itself are its files at the top."""

EXEMPT = {"autograd.kernels.cuda": "needs a GPU, or a C++ compiler", "autograd.kernels": "Numba compiles it",
          "autograd.compiler": "it compiles", "collectives.audit.hook": "it needs torch",
          "autograd": "its files gather names of rooms below",
          "autograd.ops.everything": "it gathers the names of operations",
          "collectives": "its files are used by all of its rooms"}  # fmt: skip
"""Rooms without quick tests of their own, and why."""

LONG = {
    "test_two_hundred_steps_do_not_grow_memory", "test_memory_of_n_layers_in_segments_of_root_n",
    "test_planted_faults_are_found", "test_every_declaration_of_ringtape_is_true", "test_all_of_them_train_a_model",
    "test_every_rank_is_told_over_mpi", "test_the_end_of_the_block_finds_a_last_update_by_hand_on_one_rank",
    "test_the_modules_of_inspect_are_found_at_their_first_use",
    "test_what_the_plan_says_is_sent_is_what_backward_sends", "test_random_sequences",
    "test_a_plot_has_the_curves_and_names_the_extra", "test_no_schedule_deadlocks",
    "test_under_mpiexec", "test_over_mpi", "test_stalled_peer_ends_the_job", "test_a_probe_of_a_rank_is_no_rank",
    "test_operands_on_different_devices_are_refused", "test_draws_are_the_same_on_both_devices",
    "test_size_of_eight_ranks_with_two_thousand_operations", "test_many_values_are_rounded",
    "test_calls_on_threads", "test_planted_faults_are_seen", "test_failed_peer_ends_the_job",
    "test_the_report_counts_experts_and_ranks", "test_gradients_are_those_of_differences", "test_on_processes",
}  # fmt: skip
"""Functions of the files above that take seconds, compile, or start jobs that another row starts."""


def paths() -> list[str]:
    """The files, functions and cases, as arguments of pytest."""
    root = Path(__file__).parent
    return [str(root / path) for row in QUICK.values() for path in row]


def is_quick(nodeid: str) -> bool:
    """Whether a test, by its node's id, is one of the quick tests."""
    case = nodeid.removeprefix("tests/")
    function = case.partition("[")[0]
    file, _, name = function.partition("::")
    return bool({file, function, case} & _ALL) and name not in LONG


_ALL = {path for row in QUICK.values() for path in row}
