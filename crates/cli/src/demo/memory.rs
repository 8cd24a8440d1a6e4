//! How much memory there is to be had: what Linux says is free, and what a container or a service may use at most. What for is
//! not known here.

use std::{fs, path::Path};

/// Bytes that could be had without swapping; nothing where Linux does not say.
pub fn available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = limit(Path::new("/sys/fs/cgroup"), &groups);
    Some(limit.unwrap_or(u64::MAX).min(kibibytes << 10))
}

/// The least that any control group around this process allows, of both versions. A container may not see its own group by the
/// name it has outside; then the limit is at the root.
fn limit(root: &Path, groups: &str) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let (root, file) = match controllers {
            "" => (root.to_path_buf(), "memory.max"),
            "memory" => (root.join("memory"), "memory.limit_in_bytes"),
            _ => return None,
        };
        let group = root.join(path.trim_start_matches('/'));
        let around = group.ancestors().take_while(|it| it.starts_with(&root));
        around
            .filter_map(|it| fs::read_to_string(it.join(file)).ok()?.trim().parse::<u64>().ok())
            .min()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_says_how_much_memory_is_free() {
        assert!(available().is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn the_tightest_group_around_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("service/memory.max", "1000\n");
        write("service/inner/memory.max", "max\n");
        assert_eq!(limit(root.path(), "0::/service/inner"), Some(1000));
        assert_eq!(limit(root.path(), "0::/"), None);
        write("memory/memory.limit_in_bytes", "500\n");
        assert_eq!(limit(root.path(), "3:cpu:/x\n4:memory:/seen/outside\n0::/service"), Some(500));
        assert_eq!(limit(root.path(), "something else"), None);
    }
}
