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
    Mutation("cotangents of a whole graph left on the CPU", "measure/squashing/jacobians/rows.py", "directions.to(output.device, output.dtype)", "directions.to(output.dtype)", "test_several.py::test_cotangents_stand_on_the_device_of_the_output"),
    Mutation("cotangents left on the device of another block", "engine/differentiating/replay.py", "part.to(above.device), len(part), check", "part, len(part), check", "test_several.py::test_cotangents_stand_on_the_device_of_the_output"),
    Mutation("a row looked at on the device at every block", "theory/bounds/paths.py", "attended = pushed(weighted, pattern, within)\n        row", "attended = pushed(weighted, pattern)\n        row", "test_round_trips.py::test_more_blocks_take_no_more_round_trips[gemma2-path_bound]"),
    Mutation("rows of hops looked at on the device at every block", "theory/bounds/paths.py", "attended = pushed(weighted, pattern, within)\n        weighted", "attended = pushed(weighted, pattern)\n        weighted", "test_round_trips.py::test_more_blocks_take_no_more_round_trips[gemma2-hops]"),
    Mutation("cotangents looked at on the device at every block", "engine/running/streamed.py", "reached = None if stream.reached is None else", "reached = None if True else", "test_round_trips.py::test_more_blocks_take_no_more_round_trips[gemma2-sketch]"),
    Mutation("a check read on a device for every result", "engine/differentiating/deferred.py", 'if wrong.device.type == "cpu":', "if True:", "test_round_trips.py::test_more_batches_of_cotangents_take_no_more"),
    Mutation("of the results on a device only the last checked", "engine/differentiating/deferred.py", "wrong if before is None else before | wrong", "wrong", "test_round_trips.py::test_a_check_of_many_results"),
    Mutation("products on a device not checked", "engine/differentiating/spans.py", "own.require()", "pass", "test_round_trips.py::test_derivatives_that_are_not_finite"),
    Mutation("products of blocks on a device not checked", "engine/differentiating/replay.py", "check.require()", "pass", "test_round_trips.py::test_what_a_block_reports_is_raised"),
    Mutation("rows on a device not checked for later tokens", "measure/squashing/jacobians/rows.py", "        yield require_causal(rows, query, check)\n    check.require()", "        yield require_causal(rows, query, check)", "test_round_trips.py::test_later_tokens_on_a_device[jacobian_norms]"),
    Mutation("rows of a profile on a device not checked for later tokens", "measure/squashing/profiles/pullbacks.py", "            check.require()\n            return", "            return", "test_round_trips.py::test_later_tokens_on_a_device[profile]"),
    Mutation("weights read one by one", "engine/proving/fingerprint.py", "tensor_digests([*kept.values()])", "map(tensor_digest, kept.values())", "test_round_trips.py::test_more_blocks_take_no_more_round_trips[gemma2-hops]"),
    Mutation("streams of a pass brought one by one", "engine/running/passes.py", 'if site.endswith("hook_pattern"):  # large', "if True:  # large", "test_round_trips.py::test_more_blocks_take_no_more_round_trips[gemma2-collapse with one pass]"),
)  # fmt: skip
