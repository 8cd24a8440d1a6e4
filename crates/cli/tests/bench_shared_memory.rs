//! `paceline bench` where `/dev/shm` is full: it says so, with the peer and the remedy. As root only, in a
//! mount namespace of the test's own.

use std::process::{Command, Stdio};

#[test]
fn a_peer_that_needs_shared_memory_is_left_out_with_the_remedy_where_it_is_full() {
    let script = "mount -t tmpfs -o size=64k tmpfs /dev/shm || exit 77; exec \"$@\"";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_paceline")])
        .args(["bench", "allreduce", "--against", "openmpi", "--only-peers", "--no-install"])
        .stdin(Stdio::null())
        .output();
    let output = match output {
        Ok(output) if output.status.code() != Some(77) => output,
        _ => return eprintln!("skipped: no mount namespace of our own"),
    };
    let errors = String::from_utf8(output.stderr).unwrap();
    if errors.starts_with("unshare:") {
        return eprintln!("skipped: {errors}");
    }
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let words = "Leaving out openmpi: needs 20 MiB of shared memory, but 64 KiB of 64 KiB are left";
    assert!(errors.contains(words), "{errors}");
    assert!(errors.contains("mount -o remount,size=32M /dev/shm"), "{errors}");
}
