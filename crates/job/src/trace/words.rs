//! Names that others give to collectives, element types and passes, in our words. It knows no file.

use super::Phase;
use crate::{CollectiveKind, Dtype};

/// What passes between two workers, where a file does not say which way.
pub(crate) const SEND_RECEIVE: &str = "send_receive";

/// Our word for a collective that somebody named: `ncclDevKernel_AllReduce_Sum_f32_RING_LL`, `nccl:_all_gather_base`,
/// `c10d::allreduce_`, `HOROVOD_ALLREDUCE`. None if the name is not one of a collective that we know.
pub(super) fn operation(name: &str) -> Option<&'static str> {
    // Longer names first: a reduction that is scattered is no scatter.
    const WORDS: [(&str, &str); 14] = [
        ("reducescatter", CollectiveKind::ReduceScatter.word()),
        ("allreduce", CollectiveKind::AllReduce.word()),
        ("allgather", CollectiveKind::AllGather.word()),
        ("alltoall", CollectiveKind::AllToAll.word()),
        ("barrier", CollectiveKind::Barrier.word()),
        ("broadcast", CollectiveKind::Broadcast.word()),
        ("gather", CollectiveKind::Gather.word()),
        ("scatter", CollectiveKind::Scatter.word()),
        ("reduce", CollectiveKind::Reduce.word()),
        ("sendrecv", SEND_RECEIVE),
        ("isend", CollectiveKind::Send.word()),
        ("irecv", CollectiveKind::Recv.word()),
        ("send", CollectiveKind::Send.word()),
        ("recv", CollectiveKind::Recv.word()),
    ];
    let plain: String = name
        .chars()
        .filter(|character| !matches!(character, '_' | '-' | ' '))
        .collect::<String>()
        .to_lowercase();
    WORDS.iter().find(|(word, _)| plain.contains(word)).map(|(_, ours)| *ours)
}

/// The pass that the name of an operator or a kernel tells plainly: `aten::convolution_backward`, `bn_bw_1C11_singleread`,
/// `winogradWgradData4x4`, `dgrad_engine`, `Optimizer.step#SGD.step`. [`Phase::Other`] if it tells none; a forward pass has no
/// name of its own.
pub(super) fn phase(name: &str) -> Phase {
    // `bw` is a word of its own there: letters in the middle of others say nothing.
    const PARTS: [&str; 6] =
        ["backward", "autograd::engine::evaluate_function", "dgrad", "wgrad", "bwd", "bprop"];
    let lower = name.to_lowercase();
    let mut words = lower.split(|it: char| !it.is_ascii_alphanumeric());
    if PARTS.iter().any(|part| lower.contains(part)) || words.any(|word| word == "bw") {
        Phase::Backward
    } else if lower.contains("optimizer.step") {
        Phase::Update
    } else {
        Phase::Other
    }
}

/// The element type that somebody named: `Float`, `c10::Half`, `torch.bfloat16`, `Tensor(float)`, `DT_FLOAT`.
pub(super) fn dtype(name: &str) -> Option<Dtype> {
    let name = name.trim().to_lowercase();
    let name = name.strip_prefix("tensor(").and_then(|it| it.strip_suffix(')')).unwrap_or(&name);
    let name = name.rsplit(['.', ':']).next().unwrap_or(name);
    Some(match name.strip_prefix("dt_").unwrap_or(name) {
        "double" | "float64" | "f64" => Dtype::F64,
        "float" | "float32" | "f32" => Dtype::F32,
        "half" | "float16" | "f16" => Dtype::F16,
        "bfloat16" | "bf16" => Dtype::Bf16,
        "long" | "int64" | "i64" | "long int" | "int64_t" => Dtype::I64,
        "int" | "int32" | "i32" | "int32_t" => Dtype::I32,
        "char" | "int8" | "i8" | "int8_t" | "signed char" => Dtype::I8,
        "byte" | "uint8" | "u8" | "uint8_t" | "unsigned char" => Dtype::U8,
        "bool" => Dtype::Bool,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectives_of_others_have_our_words() {
        for (name, ours) in [
            ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", "all_reduce"),
            ("ncclKernel_ReduceScatter_RING_LL_Sum_float", "reduce_scatter"),
            ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "send_receive"),
            ("_allgather_base", "all_gather"),
            ("c10d::allreduce_", "all_reduce"),
            ("all_to_allv", "all_to_all"),
            ("gloo:broadcast", "broadcast"),
            ("NEGOTIATE_ALLREDUCE", "all_reduce"),
            ("ncclDevKernel_Reduce_Sum_f16", "reduce"),
        ] {
            assert_eq!(operation(name), Some(ours), "{name}");
        }
        assert_eq!(operation("ncclDevKernel_Generic"), None);
    }

    #[test]
    fn passes_are_told_where_names_are_plain() {
        for name in [
            "aten::convolution_backward(3)",
            "autograd::engine::evaluate_function: AddmmBackward0",
            "void cudnn::bn_bw_1C11_singleread<float, 512, true, 1, 2, 7>(cudnn::bn_bw_1C11_args<float>)",
            "void cudnn::winograd_nonfused::winogradWgradData4x4<float, float>(float)",
            "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)",
            "flash_bwd_kernel",
        ] {
            assert_eq!(phase(name), Phase::Backward, "{name}");
        }
        assert_eq!(phase("Optimizer.step#SGD.step"), Phase::Update);
        for name in ["aten::conv2d", "maxwell_scudnn_winograd_128x128", "bn_fw_tr_1C11", "abwehr"] {
            assert_eq!(phase(name), Phase::Other, "{name}");
        }
    }

    #[test]
    fn element_types_of_others_are_ours() {
        for (name, ours) in [
            ("Float", Dtype::F32),
            ("c10::Half", Dtype::F16),
            ("torch.bfloat16", Dtype::Bf16),
            ("Tensor(float)", Dtype::F32),
            ("long int", Dtype::I64),
        ] {
            assert_eq!(dtype(name), Some(ours), "{name}");
        }
        assert_eq!(dtype("Float8_e4m3fn"), None);
    }
}
