//! Claims about single files of PyTorch's profiler.

use crate::made::{AUTOGRAD, MAIN, Made, after, count, reported, span};
use paceline_job::{
    Dtype, Rank,
    trace::{Kind, LaneKind, Phase, Stamp, Step, Trace, chrome::Event},
};

#[test]
fn threads_and_streams_are_lanes_and_steps_are_what_the_profiler_marked() {
    let (worker, _) = Made::training(1, 2, 3).read();
    assert_eq!((worker.rank, worker.world), (Rank(1), Some(2)));
    let kinds: Vec<_> = worker.lanes.iter().map(|lane| lane.kind).collect();
    assert_eq!(kinds, [LaneKind::Thread, LaneKind::Thread, LaneKind::Stream, LaneKind::Stream]);
    let step = |number: u64| {
        let begin = Stamp(number as i64 * 1_000_000);
        Step { number, begin, end: begin.after(990_000) }
    };
    assert_eq!(worker.steps, [step(0), step(1), step(2)]);
    assert!(worker.spans.is_sorted_by_key(|span| span.begin));
}

#[test]
fn a_kernel_waits_for_the_call_that_launched_it_and_belongs_to_its_phase() {
    let (worker, _) = Made::training(0, 2, 1).read();
    for (name, phase, first) in [
        ("gemm", Phase::Forward, "cudaLaunchKernel"),
        ("gemm_backward", Phase::Backward, "cudaLaunchKernel"),
        ("update", Phase::Update, "cudaLaunchKernel"),
    ] {
        let (_, kernel) = span(&worker, name, 0);
        assert_eq!(kernel.kind, Kind::Work(phase), "{name}");
        let launch = &worker.spans[kernel.after[0].0 as usize];
        assert_eq!((&*launch.name, &launch.kind), (first, &Kind::Launch), "{name}");
    }
    assert_eq!(count(&worker, |kind| *kind == Kind::Launch), 4);
}

#[test]
fn a_collective_says_what_it_carries() {
    let (worker, _) = Made::training(0, 2, 1).read();
    let (_, reduce) = span(&worker, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 0);
    let Kind::Collective(collective) = &reduce.kind else { panic!("{reduce:?}") };
    assert_eq!((&*collective.operation, &*collective.group), ("all_reduce", "0"));
    assert_eq!((collective.bytes, collective.dtype), (4000, Some(Dtype::F32)));
    assert_eq!(collective.members, []);
}

#[test]
fn the_operator_around_a_launch_says_it_where_the_kernel_does_not() {
    let mut made = Made::new(2, 8);
    let operator = made.operator(MAIN, "record_param_comms", 0, 100);
    for (key, value) in [("Collective name", "_reduce_scatter_base"), ("dtype", "BFloat16")] {
        operator.args.insert(key.into(), value.into());
    }
    operator.args.insert("Process Group Ranks".into(), "[0, 2]".into());
    operator.args.insert("Process Group Name".into(), "7".into());
    operator.args.insert("In msg nelems".into(), 64.into());
    operator.args.insert("Seq".into(), 12.into());
    made.call(MAIN, "cudaLaunchKernelExC", 10, 5, 1);
    made.kernel(40, "ncclDevKernel_Generic(x)", 50, 10, 1);
    let (worker, _) = made.read();
    let (_, kernel) = span(&worker, "ncclDevKernel_Generic(x)", 0);
    let Kind::Collective(collective) = &kernel.kind else { panic!("{kernel:?}") };
    assert_eq!((&*collective.operation, collective.bytes), ("reduce_scatter", 128));
    assert_eq!(collective.members, [Rank(0), Rank(2)]);
    assert_eq!((collective.sequence, &*collective.group), (Some(12), "7"));
}

#[test]
fn shapes_of_an_annotation_say_what_old_files_do_not() {
    let mut made = Made::new(0, 2);
    let annotation = made.annotation(MAIN, "nccl:all_to_all", 0, 100);
    annotation.args.insert("Input Dims".into(), serde_json::json!([[10, 20], []]));
    annotation.args.insert("Input type".into(), serde_json::json!(["c10::Half", ""]));
    made.call(MAIN, "cudaLaunchKernel", 10, 5, 1);
    made.kernel(40, "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", 50, 10, 1);
    let (worker, _) = made.read();
    let (_, kernel) = span(&worker, "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", 0);
    let Kind::Collective(collective) = &kernel.kind else { panic!("{kernel:?}") };
    assert_eq!((&*collective.operation, collective.bytes), ("all_to_all", 400));
}

#[test]
fn what_did_not_end_while_the_profiler_ran_is_left_out_and_reported() {
    let mut made = Made::new(0, 2);
    made.annotation(MAIN, "gloo:all_reduce", 0, 100_000)
        .args
        .insert("finished".into(), false.into());
    made.call(MAIN, "cudaLaunchKernel", 10, 5, 1);
    let (worker, problems) = made.read();
    assert!(worker.spans.iter().all(|span| &*span.name != "gloo:all_reduce"));
    assert!(problems.iter().any(|problem| problem.text.contains("did not end")), "{problems:?}");
}

#[test]
fn without_synchronisation_records_streams_wait_as_process_groups_do_it_and_that_is_said() {
    let (worker, problems) = Made::training(0, 2, 2).read();
    let (_, reduce) = span(&worker, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 1000);
    assert_eq!(after(&worker, reduce), ["gemm_backward", "cudaLaunchKernel"]);
    let (_, update) = span(&worker, "update", 1000);
    assert!(after(&worker, update).contains(&&*reduce.name), "{update:?}");
    reported(&problems, "as PyTorch's process groups do it", 4);
}

#[test]
fn a_wait_between_streams_that_the_times_refute_is_not_taken() {
    let mut made = Made::training(0, 2, 1);
    let reduce = made.events.iter_mut().find(|event| event.name.starts_with("nccl")).unwrap();
    // It went on while the update ran.
    reduce.dur = Some(900_000);
    let (worker, problems) = made.read();
    let (_, update) = span(&worker, "update", 0);
    assert_eq!(after(&worker, update), ["cudaLaunchKernel"]);
    reported(&problems, "cannot have been", 1);
}

#[test]
fn records_of_synchronisation_say_what_waits_for_what() {
    let mut made = Made::new(0, 1);
    made.operator(MAIN, "op", 0, 1000);
    made.call(MAIN, "cudaLaunchKernel", 10, 5, 1);
    made.kernel(7, "first", 20, 100, 1);
    made.call(MAIN, "cudaEventRecord", 20, 1, 2);
    made.call(MAIN, "cudaLaunchKernel", 30, 5, 3);
    made.kernel(7, "later", 130, 500, 3);
    made.call(MAIN, "cudaStreamWaitEvent", 40, 1, 4);
    let wait = made.sync(20, 40, 4);
    wait.args.insert("wait_on_stream".into(), 7.into());
    wait.args.insert("wait_on_cuda_event_record_corr_id".into(), 2.into());
    made.call(MAIN, "cudaLaunchKernel", 50, 5, 5);
    made.kernel(20, "second", 125, 10, 5);
    made.call(MAIN, "cudaStreamSynchronize", 60, 80, 6);
    made.sync(20, 61, 6);
    let (worker, problems) = made.read();
    assert_eq!(after(&worker, span(&worker, "second", 0).1), ["first", "cudaLaunchKernel"]);
    let (_, wait) = span(&worker, "cudaStreamSynchronize", 0);
    assert_eq!(wait.kind, Kind::Wait);
    assert_eq!(after(&worker, wait), ["second"]);
    assert!(!problems.iter().any(|problem| problem.text.contains("taken")), "{problems:?}");
}

#[test]
fn a_wait_for_the_device_is_for_the_last_of_every_stream() {
    let (worker, _) = Made::training(0, 2, 1).read();
    let (_, wait) = span(&worker, "cudaDeviceSynchronize", 0);
    let mut names = after(&worker, wait);
    names.sort_unstable();
    assert_eq!(names, ["ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "update"]);
}

#[test]
fn a_copy_that_blocks_is_a_launch_and_a_wait() {
    let mut made = Made::new(0, 1);
    made.call(MAIN, "cudaMemcpyAsync", 0, 100, 1);
    made.copy(7, "Memcpy DtoH (Device -> Pageable)", 30, 60, 1);
    made.call(MAIN, "cudaMemcpyAsync", 200, 10, 2);
    made.copy(7, "Memcpy HtoD (Pinned -> Device)", 230, 60, 2);
    let (worker, _) = made.read();
    let calls: Vec<_> = (worker.spans.iter())
        .filter(|span| &*span.name == "cudaMemcpyAsync")
        .map(|span| (span.begin.0 / 1000, span.length / 1000, &span.kind))
        .collect();
    assert_eq!(calls, [(0, 30, &Kind::Launch), (30, 70, &Kind::Wait), (200, 10, &Kind::Launch)]);
    assert_eq!(after(&worker, &worker.spans[2]), ["cudaMemcpyAsync"]);
}

#[test]
fn the_caller_of_backward_waits_for_autograd_and_autograd_for_the_caller() {
    let (worker, _) = Made::training(0, 2, 2).read();
    let (_, wait) = span(&worker, "wait for backward", 1000);
    assert_eq!((wait.begin, wait.length), (Stamp(1_100_000), 200_000));
    let backward = "autograd::engine::evaluate_function: LinearBackward";
    assert_eq!(after(&worker, wait), [backward]);
    assert_eq!(after(&worker, span(&worker, backward, 1000).1), ["aten::linear"]);
}

#[test]
fn what_autograd_does_besides_is_waited_for_unless_it_goes_on_beside_the_caller() {
    let mut made = Made::training(0, 2, 2);
    made.operator(AUTOGRAD, "aten::copy_", 1301, 15);
    made.operator(AUTOGRAD, "aten::mul_", 1317, 100);
    let (worker, _) = made.read();
    let (_, wait) = span(&worker, "wait for backward", 1000);
    assert_eq!((wait.begin, wait.length), (Stamp(1_100_000), 216_000));
    assert_eq!(after(&worker, wait), ["aten::copy_"]);
}

#[test]
fn annotations_with_nothing_inside_are_work() {
    let mut made = Made::new(0, 1);
    made.annotation(MAIN, "load", 0, 100);
    made.annotation(MAIN, "around", 200, 100);
    made.operator(MAIN, "inside", 210, 50);
    let (worker, _) = made.read();
    assert_eq!(span(&worker, "load", 0).1.kind, Kind::Work(Phase::Other));
    assert_eq!(span(&worker, "around", 0).1.kind, Kind::Scope);
}

#[test]
fn without_marks_steps_lie_between_updates_and_that_is_said() {
    let mut made = Made::training(0, 2, 3);
    made.events.retain(|event| !event.name.starts_with("ProfilerStep"));
    let (worker, problems) = made.read();
    let lengths: Vec<_> = worker.steps.iter().map(|step| step.end.since(step.begin)).collect();
    assert_eq!(lengths, [1_000_000, 1_000_000]);
    reported(&problems, "no steps are marked", 1);
}

#[test]
fn gloo_s_annotations_are_collectives_of_what_was_posted() {
    let mut made = Made::new(0, 2);
    let post = made.operator(MAIN, "c10d::allreduce_", 0, 10);
    post.args.insert("Input Dims".into(), serde_json::json!([[[5], [7]]]));
    post.args.insert("Input type".into(), serde_json::json!(["TensorList"]));
    let carried = made.annotation(300, "gloo:all_reduce", 20, 100);
    carried.args.insert("Input Dims".into(), serde_json::json!([[12]]));
    carried.args.insert("Input type".into(), serde_json::json!(["double"]));
    let (worker, _) = made.read();
    let (_, reduce) = span(&worker, "gloo:all_reduce", 0);
    let Kind::Collective(collective) = &reduce.kind else { panic!("{reduce:?}") };
    assert_eq!((&*collective.operation, collective.bytes), ("all_reduce", 96));
    assert_eq!(after(&worker, reduce), ["c10d::allreduce_"]);
}

/// A step of DDP over Gloo: two buckets handed over in the backward pass, of which the first is over before the pass is.
fn over_gloo() -> Made {
    let mut made = Made::new(0, 2);
    made.annotation(MAIN, "ProfilerStep#0", 0, 1000);
    made.operator(MAIN, "aten::linear", 10, 90).args.insert("Sequence number".into(), 1.into());
    for (post, carried, thread) in [(150, 200, 300), (350, 360, 301)] {
        made.operator(MAIN, "autograd::engine::evaluate_function: A", post - 50, 150);
        let name = "c10d::allreduce_";
        made.operator(MAIN, name, post, 60)
            .args
            .insert("Input Dims".into(), serde_json::json!([[[25]]]));
        made.annotation(thread, "gloo:all_reduce", carried, if thread == 300 { 50 } else { 340 })
            .args
            .insert("Input type".into(), serde_json::json!(["float"]));
    }
    made.operator(MAIN, "torch.distributed.ddp.reducer::copy_bucket_to_grad", 460, 10);
    made.operator(MAIN, "torch.distributed.ddp.reducer::copy_bucket_to_grad", 720, 10);
    made.annotation(MAIN, "Optimizer.step#SGD.step", 750, 100);
    made.operator(MAIN, "aten::add_", 760, 50);
    made
}

#[test]
fn threads_wait_for_gloo_after_the_backward_pass_in_the_order_of_posts() {
    let (worker, problems) = over_gloo().read();
    let waits: Vec<_> = worker.spans.iter().filter(|span| span.kind == Kind::Wait).collect();
    let times: Vec<_> = waits.iter().map(|wait| (wait.begin.0, wait.length)).collect();
    // The first bucket was there: to wait for it took no time, and would if it came later.
    assert_eq!(times, [(450_000, 0), (470_000, 230_000)]);
    for (wait, carried) in waits.iter().zip([200, 360]) {
        let (id, _) = span(&worker, "gloo:all_reduce", carried);
        assert_eq!(wait.after, [id]);
    }
    reported(&problems, "does not say when threads wait for Gloo", 2);
}

#[test]
fn what_gloo_is_told_to_do_begins_before_it_is_told_in_full() {
    let (worker, _) = over_gloo().read();
    let (_, post) = span(&worker, "c10d::allreduce_", 150);
    let (_, carried) = span(&worker, "gloo:all_reduce", 200);
    assert!(carried.begin < post.end());
    assert_eq!(post.kind, Kind::Launch);
}

#[test]
fn a_collective_of_gloo_outside_of_backward_is_waited_for_at_once() {
    let mut made = over_gloo();
    made.operator(MAIN, "c10d::allreduce_", 860, 5);
    made.annotation(300, "gloo:all_reduce", 862, 40);
    made.operator(MAIN, "aten::item", 920, 5);
    let (worker, problems) = made.read();
    let (id, _) = span(&worker, "gloo:all_reduce", 862);
    let wait = worker.spans.iter().find(|span| span.after == [id]).expect("it is waited for");
    assert_eq!((&wait.kind, wait.begin.0, wait.length), (&Kind::Wait, 865_000, 37_000));
    reported(&problems, "does not say how much it carries", 1);
}

#[test]
fn a_wait_for_gloo_that_the_times_refute_is_not_taken() {
    let mut made = over_gloo();
    made.operator(MAIN, "autograd::engine::evaluate_function: B", 451, 2);
    made.operator(MAIN, "c10d::broadcast_", 452, 1);
    made.annotation(302, "gloo:broadcast", 455, 500);
    let (_, problems) = made.read();
    reported(&problems, "nothing waits for it", 1);
}

#[test]
fn steps_whose_launches_are_all_lost_lack_events() {
    let mut made = Made::training(0, 1, 2);
    let (whole, _) = made.read();
    assert!(whole.steps.iter().all(|step| !whole.lost.concerns(step)));
    made.events.retain(|event| event.cat != "cuda_runtime");
    let (worker, problems) = made.read();
    assert!(worker.steps.iter().all(|step| worker.lost.concerns(step)), "{problems:?}");
}

#[test]
fn what_is_wrong_is_reported_and_the_rest_is_read() {
    let mut made = Made::training(0, 1, 2);
    // Before its launch, without a launch, a launch's id again, an event again, a step again, an overlap.
    made.call(MAIN, "cudaLaunchKernel", 800, 5, 60);
    made.kernel(7, "early", 790, 5, 60);
    made.kernel(7, "orphan", 850, 5, 61);
    made.call(MAIN, "cudaFree", 860, 5, 60);
    made.kernel(7, "overlaps", 852, 30, 62);
    made.annotation(MAIN, "ProfilerStep#1", 3000, 10);
    let again = made.events[3].clone();
    made.events.push(again);
    made.operator(AUTOGRAD, "one", 2000, 50);
    made.operator(AUTOGRAD, "two", 2030, 50);
    made.events.push(Event::new('X', "no duration", Stamp(0)).category("cpu_op").on(99, MAIN));
    let (worker, problems) = made.read();
    for (part, times) in [
        ("before it was launched", 1),
        ("launch of something a device did", 2),
        ("same correlation", 1),
        ("there twice", 1),
        ("a step was recorded again", 1),
        ("overlaps although", 1),
        ("overlap without", 1),
        ("has no duration", 1),
    ] {
        reported(&problems, part, times);
    }
    assert_eq!(worker.steps.len(), 2);
    // The link that the ids say is kept, whatever the clocks say.
    assert_eq!(after(&worker, span(&worker, "early", 0).1), ["cudaLaunchKernel"]);
}

#[test]
fn a_file_cut_anywhere_is_read_or_refused_without_panic() {
    let whole = Made::training(0, 2, 2).bytes();
    for length in (0..whole.len()).step_by(7) {
        if let Ok(trace) = Trace::read_bytes("rank0.json.gz", whole[..length].to_vec()) {
            assert!(!trace.problems.is_empty());
        }
    }
}

#[test]
fn kernels_that_were_given_one_correlation_are_reported_unless_a_graph_launched_them() {
    for (call, times) in [("cudaLaunchKernel", Some(9)), ("cudaGraphLaunch", None)] {
        let mut made = Made::new(0, 1);
        made.call(MAIN, call, 0, 5, 1);
        for number in 0..10 {
            made.kernel(7, &format!("kernel {number}"), 10 + number * 10, 5, 1);
        }
        let (worker, problems) = made.read();
        let (_, first) = span(&worker, "kernel 0", 0);
        assert_eq!(after(&worker, first), [call]);
        let tied = worker.spans.iter().filter(|span| !span.after.is_empty()).count();
        assert_eq!(tied as u64, 10 - times.unwrap_or(0), "{call}");
        let found = problems.iter().find(|it| it.text.contains("the correlation of another"));
        assert_eq!(found.map(|problem| problem.times), times, "{call}: {problems:?}");
    }
}

/// How many of three steps lack something once a file was changed.
fn lossy(change: impl FnOnce(&mut Made)) -> usize {
    let mut made = Made::training(0, 2, 3);
    change(&mut made);
    Trace::read_bytes("rank0.json.gz", made.bytes()).unwrap().lossy_steps()
}

#[test]
fn steps_that_lost_events_are_counted_and_whole_ones_are_not() {
    let is_kernel = |event: &Event| event.cat == "kernel";
    assert_eq!(lossy(|_| ()), 0);
    let drop_one = |made: &mut Made| {
        let last = made.events.iter().rposition(is_kernel).unwrap();
        made.events.remove(last);
    };
    assert_eq!(lossy(drop_one), 1, "a launch without its kernel");
    assert_eq!(lossy(|made| made.events.retain(|event| !is_kernel(event))), 3, "no kernels");
    let is_launch = |event: &Event| event.name.contains("Launch");
    let unlaunched = |made: &mut Made| {
        let last = made.events.iter().rposition(is_launch).unwrap();
        made.events.remove(last);
    };
    assert_eq!(lossy(unlaunched), 1, "a kernel without its launch");
    let before = |made: &mut Made| {
        let first = made.events.iter().position(is_launch).unwrap();
        made.events.remove(first);
    };
    assert_eq!(lossy(before), 0, "it may have been launched before anything was recorded");
    let alike = |made: &mut Made| {
        let known = made.events.iter_mut().filter(|event| event.args.contains_key("correlation"));
        known.for_each(|event| _ = event.args.insert("correlation".into(), 7.into()));
    };
    assert_eq!(lossy(alike), 3, "all have the same correlation");
    let timeless = |made: &mut Made| {
        made.events.iter_mut().filter(|event| is_kernel(event)).for_each(|event| event.dur = None);
    };
    assert_eq!(lossy(timeless), 3, "no kernel has a duration");
}

#[test]
fn every_step_of_a_file_that_was_cut_may_lack_something() {
    let bytes = Made::training(0, 2, 3).bytes();
    let trace = Trace::read_bytes("rank0.json.gz", bytes[..bytes.len() - 20].to_vec()).unwrap();
    assert_eq!((trace.lossy_steps(), trace.marked_steps()), (3, 3));
}
