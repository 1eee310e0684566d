"""Faults that only a device shows, each of which must turn a test of this folder red: see `tests.mutate`."""

from tests.mutate import Mutation

MUTATIONS = (
    Mutation("a generator on the device for certificates", "measure/squashing/certificates/certified.py", "generator=torch.Generator().manual_seed(many)", "generator=torch.Generator(device).manual_seed(many)", "test_pretended.py::test_the_numbers_are_the_cpus[gemma2-path_bound]"),
    Mutation("Lanczos starts on the CPU and stays there", "theory/lanczos.py", "generator=generator).to(device)", "generator=generator)", "test_pretended.py::test_the_numbers_are_the_cpus[gemma2-path_bound]"),
    Mutation("roundings drawn on the device", "engine/differentiating/exact.py", "drawn = torch.empty_like(found, device=\"cpu\", requires_grad=False)", "drawn = torch.empty_like(found, requires_grad=False)", "test_mixing.py::test_the_size_of_rounding_is_that_of_the_cpu"),
    Mutation("nothing moved on a device", "engine/differentiating/exact.py", "if not isinstance(found, Tensor) or not", "if type(found) is not Tensor or not", "test_mixing.py::test_the_size_of_rounding_is_that_of_the_cpu"),
    Mutation("positions of values left on the CPU", "hooks/interventions.py", "place = torch.arange(values.shape[1], device=values.device)", "place = torch.arange(values.shape[1])", "test_pretended.py::test_hooks_compute_what_they_do_on_the_cpu[gemma2-zero_values]"),
    Mutation("noise left on the CPU while answers are drawn", "engine/running/generate.py", "noise.to(logits.device)", "noise", "test_pretended.py::test_the_numbers_are_the_cpus[tiny-gemma-evaluate]"),
    Mutation("the proof compares tensors of two devices", "engine/agreement.py", "theirs.detach().to(ours.device).double()", "theirs.detach().double()", "test_several.py::test_blocks_that_go_back_to_the_first_device"),
    Mutation("streams of several devices in one tensor", "hooks/reference.py", "torch.stack(rows).to(device)", "torch.stack(rows)", "test_several.py::test_hooks_compute_what_they_do_on_the_cpu[mean_residual]"),
    Mutation("sizes of streams left on several devices", "measure/squashing/profiles/states.py", "double().norm(dim=-1).cpu() for layer", "double().norm(dim=-1) for layer", "test_several.py::test_the_numbers_are_the_cpus[squash_map]"),
    Mutation("several devices certified together", "engine/differentiating/exact.py", "    if len(devices) > 1:\n        raise", "    if len(devices) > 9:\n        raise", "test_several.py::test_certificates_of_other_measurements_are_refused"),
    Mutation("cotangents left on another device than the final norm", "measure/squashing/profiles/pullbacks.py", "part.to(alone.device)", "part", "test_several.py::test_the_numbers_are_the_cpus[squash_map]"),
)  # fmt: skip
